// Calls a pagewire service straight from its .proto files: no generated code.
//
//   node client.js ADDRESS stream 'The capital of France is'
//   node client.js ADDRESS unary  'The capital of France is'
//   node client.js ADDRESS cancel 'Count to a thousand: 1, 2, 3,'
//   node client.js ADDRESS steady 'Count to a thousand: 1, 2, 3,'
//   node client.js ADDRESS chat   'What is the capital of Japan?'
//
// ADDRESS: HOST:PORT, or several frontends: ipv4:10.0.0.1:50051,10.0.0.2:50051
// TOKEN=pw_... is the token of a server that asks for one, CA=ca.pem the authority of a server that uses TLS.

const fs = require('fs');
const path = require('path');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const MAX_TOKENS = Number(process.env.MAX_TOKENS || 40);
const PROTOS = process.env.PROTOS || path.join(__dirname, '..', '..', 'protos');

function connect(address) {
  const definition = protoLoader.loadSync('pagewire/v1/generation.proto', {
    includeDirs: [PROTOS],
    keepCase: true, // names as in the .proto files
    enums: String,
    longs: String, // a seed has 64 bits: more than a JavaScript number holds
    defaults: true, // an empty text is '', not undefined
    oneofs: true,
  });
  const { GenerationService } = grpc.loadPackageDefinition(definition).pagewire.v1;
  const { CA, TOKEN } = process.env;
  const credentials = CA ? grpc.credentials.createSsl(fs.readFileSync(CA)) : grpc.credentials.createInsecure();
  return new GenerationService(address, credentials, { interceptors: TOKEN ? [carrying(TOKEN)] : [] });
}

// An interceptor that puts the token into the metadata of every call. (grpc-js has credentials for this, but they
// travel with TLS only.)
function carrying(token) {
  return (options, nextCall) =>
    new grpc.InterceptingCall(nextCall(options), {
      start(metadata, listener, next) {
        metadata.set('authorization', `Bearer ${token}`);
        next(metadata, listener);
      },
    });
}

// Absent fields take the model's defaults; 0 is a value.
function request(prompt) {
  return { prompt, sampling: { temperature: 0 }, stopping: { max_tokens: MAX_TOKENS } };
}

// One answer, when it is complete.
function unary(client, prompt) {
  return new Promise((resolve, reject) => {
    client.GenerateUnary(request(prompt), (error, response) => (error ? reject(error) : resolve(response)));
  });
}

// Text as it is generated. The last message carries the token counts.
async function stream(client, prompt, onText) {
  let usage;
  for await (const message of client.Generate(request(prompt))) {
    for (const sequence of message.sequences) onText(sequence.text);
    usage = message.usage || usage;
  }
  return usage;
}

// A server that is gone; behind a proxy such as nginx, a stream that it had to give up.
const broke = (error) =>
  error.code === grpc.status.UNAVAILABLE ||
  ([grpc.status.INTERNAL, grpc.status.CANCELLED].includes(error.code) && /RST_STREAM/.test(error.details));

// Text as it is generated, also when the server dies: what we hold is continued on another frontend, or on the
// same one when it is back.
async function steady(client, prompt, onText) {
  const sequences = []; // what we hold, by index
  let seed;
  for (let failures = 0; ; ) {
    const again = { ...request(prompt), output: { token_ids: true } };
    if (seed !== undefined) {
      again.sampling = { ...again.sampling, seed };
      again.continuation = { sequences };
    }
    try {
      for await (const message of client.Generate(again)) {
        failures = 0;
        if (message.prompt) seed = message.seed; // first message
        for (const { index, token_ids, text } of message.sequences) {
          sequences[index] ??= { index, token_ids: [] };
          sequences[index].token_ids.push(...token_ids);
          onText(text);
        }
      }
      return;
    } catch (error) {
      if (!broke(error) || ++failures > (seed === undefined ? 3 : 20)) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100 * failures));
    }
  }
}

// Cancelling the call ends the request on the server and frees its memory.
function cancelAfterFirstMessage(client, prompt) {
  return new Promise((resolve, reject) => {
    const call = client.Generate({ ...request(prompt), stopping: { max_tokens: 900, ignore_eos: true } });
    call.once('data', () => call.cancel());
    call.on('error', (error) => (error.code === grpc.status.CANCELLED ? resolve(error) : reject(error)));
    call.on('end', () => reject(new Error('it ended before it was cancelled')));
  });
}

async function main([address, command, text]) {
  const write = (part) => process.stdout.write(part);
  const client = connect(address.replace(/^grpc:\/\//, ''));
  try {
    if (command === 'stream') {
      const usage = await stream(client, { text }, write);
      write(`\n[${usage.prompt_tokens} + ${usage.completion_tokens} tokens]\n`);
    } else if (command === 'unary') {
      const [sequence] = (await unary(client, { text })).sequences;
      write(`${sequence.text}\n[${sequence.finish.reason}]\n`);
    } else if (command === 'cancel') {
      const error = await cancelAfterFirstMessage(client, { text });
      write(`[${grpc.status[error.code]}]\n`);
    } else if (command === 'steady') {
      await steady(client, { text }, write);
      write('\n');
    } else if (command === 'chat') {
      const messages = [{ role: 'user', content: [{ text }] }];
      await stream(client, { chat: { messages } }, write);
      write('\n');
    } else {
      throw new Error(`unknown command ${command}`);
    }
  } finally {
    client.close();
  }
}

if (process.argv.length !== 5) {
  console.error('usage: node client.js ADDRESS stream|unary|cancel|steady|chat TEXT');
  process.exit(2);
}
main(process.argv.slice(2)).catch((error) => {
  console.error(error.details || error.message);
  process.exit(1);
});
