// Calls a pagewire service through its OpenAI API, with OpenAI's own package.
//
//   pagewire serve --openai-port 8000
//   node openai.mjs http://127.0.0.1:8000/v1 "Once upon a time"

import OpenAI from "openai";

const [baseURL, prompt] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: process.env.TOKEN ?? "none" });
const [{ id: model }] = (await client.models.list()).data;
const messages = [{ role: "user", content: prompt }];

// A chat, whole and as it is generated: equal seeds give equal answers.
const asked = { model, messages, max_completion_tokens: 20, seed: 7 };
const whole = await client.chat.completions.create(asked);
let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
console.log("chat:", streamed === whole.choices[0].message.content);

// The same as a response.
const response = { model, input: prompt, max_output_tokens: 20, seed: 7 };
const answer = await client.responses.create(response);
const stream = client.responses.stream(response);
const final = await stream.finalResponse();
console.log("responses:", final.output_text === answer.output_text && answer.usage.output_tokens > 0);

// JSON of a given form.
const schema = {
  type: "object",
  properties: { capital: { enum: ["Paris", "Rome"] } },
  required: ["capital"],
  additionalProperties: false,
};
const formed = await client.chat.completions.create({
  model,
  messages,
  seed: 7,
  response_format: { type: "json_schema", json_schema: { name: "place", schema, strict: true } },
});
console.log("form:", ["Paris", "Rome"].includes(JSON.parse(formed.choices[0].message.content).capital));

// Errors name the field.
try {
  await client.chat.completions.create({ model, messages, temperature: -1 });
} catch (error) {
  console.log("error:", error.status, error.param);
}
