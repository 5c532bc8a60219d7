// Writes the console into the Python package. Names are stable and code keeps its lines, so that a change of one line in
// the source is a small change in the output, which is committed.

import { defineConfig } from "vite";

const OUTPUT = process.env.CONSOLE_OUTPUT ?? "../src/everhold/console";

export default defineConfig({
  base: "/static/",
  build: {
    outDir: OUTPUT,
    emptyOutDir: true,
    target: "es2022",
    minify: false,
    cssMinify: false,
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: false,
    assetsInlineLimit: 0,
    rolldownOptions: {
      experimental: { attachDebugInfo: "none" }, // it names the directories of this machine
      output: {
        entryFileNames: "[name].js",
        chunkFileNames: "[name].js",
        assetFileNames: "[name][extname]",
        // `shared` waits for the file of the language, which may therefore import nothing from it
        codeSplitting: {
          groups: [
            { name: "preact", test: /node_modules|words\/count/ },
            { name: "shared", test: /src\/(api|conversation|live|login|state|ui|router|words\/(en|index))/ },
          ],
        },
      },
    },
  },
});
