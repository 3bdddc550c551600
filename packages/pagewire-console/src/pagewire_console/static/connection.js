// Requests to the service that this page comes from. The token lives in this tab alone (sessionStorage); there are
// no cookies, so that another page's requests carry nothing.

const TOKEN = "pagewire-token";

/** The service wants a token, or another one. */
export class NeedsToken extends Error {}

/** The token that requests carry; "" for none. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (value) => sessionStorage.setItem(TOKEN, value.trim()),
  forget: () => sessionStorage.removeItem(TOKEN),
};

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  const answer = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  if (answer.ok) return answer;
  const message = await messageOf(answer);
  throw answer.status === 401 ? new NeedsToken(message) : new Error(message);
}

async function messageOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `HTTP ${answer.status}`;
  }
}

/** Returns the JSON of an answer. Throws NeedsToken, or Error with the service's message. */
export async function getJson(path, signal) {
  return (await request(path, { signal })).json();
}

/** Yields the data of server-sent events until the answer ends. body: an object to send by POST. */
export async function* events(path, { body, headers, signal } = {}) {
  const options = { signal, headers };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    options.headers = { ...headers, "content-type": "application/json" };
  }
  const answer = await request(path, options);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.startsWith("data: ") ? part.slice(6) : "";
        if (data === "[DONE]") return;
        if (data) yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
