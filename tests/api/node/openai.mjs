// openai-node against everhold: prints what it got, as JSON.
import OpenAI from "openai";

const [baseURL, apiKey, session] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, defaultHeaders: session ? { "X-Everhold-Session": session } : {} });
const messages = [{ role: "user", content: "hello from node" }];
const got = {};

got.models = (await client.models.list()).data.map((model) => model.id);
got.whole = (await client.chat.completions.create({ model: "main", messages })).choices[0].message.content;

got.streamed = "";
const stream = await client.chat.completions.create({
  model: "main",
  messages,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  got.streamed += chunk.choices[0]?.delta?.content ?? "";
  if (chunk.usage) got.tokens = chunk.usage.total_tokens;
}

got.response = (await client.responses.create({ model: "main", input: "hello from node" })).output_text;
const events = await client.responses.create({ model: "main", input: "hello from node", stream: true });
got.events = [];
got.grown = "";
for await (const event of events) {
  got.events.push(event.type);
  if (event.type === "response.output_text.delta") got.grown += event.delta;
  if (event.type === "response.completed") got.completed = event.response.output[0].content[0].text;
}

try {
  await client.chat.completions.create({ model: "nobody", messages });
} catch (error) {
  got.error = { status: error.status, type: error.type, message: error.message };
}
console.log(JSON.stringify(got));
