// What a start takes for its data: encoded, looked up by its bytes, and read from the cache of token ids.
//
//   dataset --model DIRECTORY --data FILE --cache-dir DIRECTORY [--threads 2] [--passes 3]
//
// Prints the fewest seconds of each and what they are a byte of the files.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <limits>

#include "api/job.h"
#include "api/text.h"
#include "api/token_cache.h"
#include "base/error.h"
#include "base/parallel.h"

namespace {

void measure(const char* what, uint64_t bytes, int passes, const std::function<void()>& work) {
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < passes; i++) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  fmt::print("{:<24} {:8.4f} s  {:9.1f} MB/s\n", what, best, static_cast<double>(bytes) / best / 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Data to token ids, or the ids that were kept");
  snug::JobConfig options;
  int threads = 2, passes = 3;
  app.add_option("--model", options.model, "directory with a tokenizer")->required();
  app.add_option("--data", options.data, "files of samples")->required();
  app.add_option("--threads", threads)->check(CLI::Range(1, 1024));
  app.add_option("--cache-dir", options.cache_dir)->required();
  app.add_option("--passes", passes)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  try {
    snug::set_threads(threads);
    const snug::Tokenizer tokenizer = snug::Tokenizer::load(options.model);
    const snug::TextEncoder encoder = snug::encoder_of(tokenizer);
    const snug::ModelTokens model = snug::model_tokens(options);
    const snug::DataOptions data =
        snug::data_options(options, options.data, model.vocabulary, snug::prompt_format_of(options, model, &tokenizer),
                           [](const std::string&) {});
    uint64_t bytes = 0;
    for (const std::filesystem::path& file : data.files) bytes += std::filesystem::file_size(file);
    const auto load = [&] { snug::load_dataset_cached(options, data, &encoder, options.model, 0); };
    measure("encoded", bytes, passes, [&] { snug::load_dataset(data, &encoder); });
    measure("key", bytes, passes, [&] { snug::token_cache_key(data, encoder, options.model); });
    options.overwrite = true;
    measure("encoded and kept", bytes, passes, load);
    options.overwrite = false;
    measure("found and read", bytes, passes, load);
  } catch (const snug::UserError& error) {
    fmt::print(stderr, "dataset: {}\n", error.what());
    return 2;
  }
}
