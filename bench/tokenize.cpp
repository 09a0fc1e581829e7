// How fast texts become tokens: the lines of a file, or the file as one text, on one thread and on several.
//
//   tokenize --model DIRECTORY --text FILE [--threads 2] [--whole] [--seconds 3]
//
// Prints for each number of threads, one and --threads, the tokens, the seconds of the fastest pass and the bytes per
// second, and how many times as fast several threads are as one.
// bench/tokenize_rival.py measures the `tokenizers` library on the same.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <limits>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "format/tokenizer.h"

namespace {

// Lines with their ends, or all of the text.
std::vector<std::string_view> texts_of(std::string_view text, bool whole) {
  if (whole) return {text};
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end == std::string_view::npos ? end : end + 1));
    text.remove_prefix(lines.back().size());
  }
  return lines;
}

// One pass over all texts; the number of tokens.
size_t encode_all(const snug::Tokenizer& tokenizer, const std::vector<std::string_view>& texts, int threads) {
  constexpr size_t kLot = 64;
  std::atomic<size_t> next{0}, tokens{0};
  const auto work = [&] {
    size_t found = 0;
    for (size_t begin = next.fetch_add(kLot); begin < texts.size(); begin = next.fetch_add(kLot)) {
      for (size_t i = begin; i < std::min(begin + kLot, texts.size()); ++i) found += tokenizer.encode(texts[i]).size();
    }
    tokens += found;
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  return tokens;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Texts to tokens");
  std::string model, file;
  int threads = 2;
  double seconds = 3;
  bool whole = false;
  app.add_option("--model", model, "directory with tokenizer.json or tokenizer.model")->required();
  app.add_option("--text", file, "UTF-8")->required();
  app.add_option("--threads", threads, "measured besides one thread")->check(CLI::Range(1, 1024));
  app.add_option("--seconds", seconds, "for each number of threads, at least");
  app.add_flag("--whole", whole, "all of the file is one text");
  CLI11_PARSE(app, argc, argv);
  try {
    const snug::Tokenizer tokenizer = snug::Tokenizer::load(model);
    const std::string text = snug::read_text(file, uint64_t{1} << 31);
    const std::vector<std::string_view> texts = texts_of(text, whole);
    double alone = 0;
    for (int count = 1; count <= threads; count += std::max(1, threads - 1)) {
      double best = std::numeric_limits<double>::max(), spent = 0;
      size_t tokens = 0;
      while (spent < seconds) {
        const auto start = std::chrono::steady_clock::now();
        tokens = encode_all(tokenizer, texts, count);
        const double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        best = std::min(best, taken);
        spent += taken;
      }
      fmt::print("{} threads: {} texts, {} tokens, {:.3f} s, {:.1f} MB/s\n", count, texts.size(), tokens, best,
                 static_cast<double>(text.size()) / best / 1e6);
      if (count == 1)
        alone = best;
      else
        fmt::print("{} threads are {:.2f} times as fast as one\n", count, alone / best);
    }
  } catch (const snug::UserError& error) {
    fmt::print(stderr, "tokenize: {}\n", error.what());
    return 2;
  }
}
