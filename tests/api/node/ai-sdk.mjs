// The Vercel AI SDK against everhold: prints what it got, as JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const [baseURL, apiKey, session] = process.argv.slice(2);
const everhold = createOpenAICompatible({
  name: "everhold",
  baseURL,
  apiKey,
  headers: session ? { "X-Everhold-Session": session } : {},
});
const got = {};
got.whole = (await generateText({ model: everhold("main"), prompt: "hello from the sdk" })).text;
got.streamed = "";
const { textStream } = streamText({ model: everhold("main"), prompt: "hello from the sdk" });
for await (const piece of textStream) got.streamed += piece;
console.log(JSON.stringify(got));
