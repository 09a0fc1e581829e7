// Writes a job file for a model and data, after a look at both.
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "api/corpus.h"
#include "api/image_job.h"
#include "api/learning.h"
#include "base/file.h"
#include "base/say.h"
#include "base/size_text.h"
#include "cli/commands.h"

namespace snug {
namespace {

constexpr int64_t kLeastLength = 256, kMostLength = 131'072;
constexpr double kWhole = 0.99;        // of the samples are to fit whole
constexpr int64_t kStepsAnEpoch = 50;  // of which fewer learn little
constexpr int64_t kValidated = 100;    // samples from which on some are held out

// Holds the lengths of samples in tokens, ascending.
struct Lengths {
  std::vector<int64_t> sorted;
  int64_t tokens = 0;

  int64_t longest() const { return sorted.back(); }
  // Returns how many have at most so many tokens.
  int64_t within(int64_t length) const { return std::ranges::upper_bound(sorted, length) - sorted.begin(); }
};

Lengths lengths_of(const Corpus& corpus) {
  Lengths lengths;
  for (const uint32_t sample : corpus.training_samples) {
    lengths.sorted.push_back(corpus.training.length(sample));
    lengths.tokens += lengths.sorted.back();
  }
  if (lengths.sorted.empty()) user_error("--data: found no sample to learn from");
  std::ranges::sort(lengths.sorted);
  return lengths;
}

// Returns the smallest power of two that holds most samples whole, but no more than the model was made for.
int64_t block_length(const Lengths& lengths, int64_t most) {
  const auto wanted = static_cast<int64_t>(kWhole * static_cast<double>(lengths.sorted.size()));
  int64_t length = kLeastLength;
  while (length < most && lengths.within(length) < wanted) length *= 2;
  return std::min(length, most);
}

std::optional<Planned> planned(JobConfig options) {
  Target target(options);
  resolve_ranks(options, target, PlanMode::Look);
  Planned plan = plan_training(make_job(options, Purpose::Train), options, std::move(target), false, PlanMode::Look);
  if (!plan.fit.chosen) return std::nullopt;
  return plan;
}

// Returns "5.10 GiB of the device, 1.00 GiB of the host, and about 0.82 s a step"; no time without rates of the
// machine.
std::string taken(const Planned& plan) {
  const Arrangement& a = plan.shown();
  return fmt::format("{} of the device{}{} {} of the host{}", format_size(plan.caps.taken(a.forecast, Space::Device)),
                     a.cut.ranks > 1 ? " of each rank" : "", plan.pricing.measured() ? "," : " and",
                     format_size(plan.caps.taken(a.forecast, Space::Host)),
                     plan.pricing.measured() ? fmt::format(", and about {:.2g} s a step", a.step_seconds) : "");
}

class JobText {
 public:
  void remark(const std::string& line) { text_ += line.empty() ? "\n" : fmt::format("# {}\n", line); }
  // Adds a key with the value that the options have, and why.
  void add(const JobConfig& options, const std::string& key, const std::string& why) {
    YAML::Emitter value;
    value << find_option(key, "init").get(options);
    text_ += fmt::format("\n# {}\n{}: {}\n", why, key, value.c_str());
    keys_.insert(key);
  }
  // Adds what else was asked for.
  void add_others(const JobConfig& options) {
    for (const std::string& key : options.given)
      if (!keys_.contains(key) && key != "out" && key != "overwrite") add(options, key, "as asked");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::set<std::string> keys_;
};

// Adds, as comments, keys that data with images has a use for, with the values that count without them.
void remark_images(JobText& job, const JobConfig& options, const ImageProcessor& processor) {
  job.remark("");
  job.remark("The data has images. Which parts of the model that see them are frozen, and how large an image may be:");
  const auto remark = [&](const char* key, const std::string& value) { job.remark(fmt::format("{}: {}", key, value)); };
  for (const char* key : {"freeze_vision_tower", "freeze_projector"})
    remark(key, find_option(key, "init").get(options));
  if (const auto* bounds = std::get_if<BoundedPixels>(&processor.sizing))
    remark("image_max_pixels", fmt::format("{}", bounds->max_pixels));
  if (const auto* slices = std::get_if<OverviewAndSlices>(&processor.sizing))
    remark("max_slices", fmt::format("{}", slices->max_slices));
}

// Chooses the method, unless it is given, and says why.
std::string choose_method(JobConfig& options) {
  const auto plan_of = [&](const char* method, const char* base) {
    JobConfig other = options;
    find_option("method", "init").set(other, method);
    if (base) find_option("base_format", "init").set(other, base);
    return planned(other);
  };
  const bool given = options.given.contains("method");
  if (given && options.method == "full") {
    const auto full = plan_of("full", nullptr);
    return full ? fmt::format("as asked; it takes {}", taken(*full))
                : "as asked; it does NOT fit: snug plan says what would";
  }
  find_option("method", "init").set(options, "lora");
  // What is asked of adapters leaves no choice.
  const bool of_adapters = std::ranges::any_of(options.given, [](const std::string& key) {
    return key.starts_with("lora_") || key == "modules_to_save" || key == "ensure_weight_tying";
  });
  const auto full = of_adapters ? std::nullopt : plan_of("full", nullptr);
  const std::string other = of_adapters ? ""
                            : full      ? fmt::format("; full (all weights) would take {}", taken(*full))
                                        : "; full does not fit here";
  if (const auto lora = plan_of("lora", nullptr)) return fmt::format("adapters: it takes {}{}", taken(*lora), other);
  if (const auto nf4 = plan_of("lora", "nf4")) {
    find_option("base_format", "init").set(options, "nf4");
    return fmt::format("adapters, over a base in nf4, as nothing else fits: it takes {}", taken(*nf4));
  }
  return "adapters; even over a base in nf4 it does NOT fit: snug plan says what would";
}

}  // namespace

int init_command(JobConfig options, const CommandFlags&) {
  if (options.data.empty()) user_error("--data is required: the job file is made for a model and data");
  const std::filesystem::path out = options.out.empty() ? "job.yaml" : options.out;
  if (std::filesystem::exists(out) && !options.overwrite)
    user_error("{}: found a file, expected none; --overwrite replaces it, --out writes another", out.string());
  options.out.clear();
  const ModelConfig config = model_config_of(options);
  const int64_t most = std::clamp(config.spec.positions, kLeastLength, kMostLength);
  const bool given = options.given.contains("sequence_length");
  if (!given) options.sequence_length = most;
  Corpus corpus = read_corpus(options, {});
  note_found(corpus, options);
  const Lengths lengths = lengths_of(corpus);
  const auto samples = std::ssize(lengths.sorted);
  if (!given) options.sequence_length = block_length(lengths, most);

  const int64_t blocks = std::max(int64_t{1}, lengths.tokens / options.sequence_length);
  if (!options.given.contains("batch_size"))
    options.batch_size = std::clamp(blocks / kStepsAnEpoch, int64_t{1}, int64_t{16});
  const int64_t steps = std::max(int64_t{1}, blocks / options.batch_size);
  if (!options.given.contains("epochs") && !options.max_steps) options.epochs = steps < kStepsAnEpoch ? 3 : 1;
  if (!options.given.contains("validation") && samples >= kValidated) options.validation = {"0.02"};
  const std::string method = choose_method(options);

  JobText job;
  job.remark("A job of snug: `snug plan " + out.string() + "` says what it takes, `snug train " + out.string() +
             "` runs it. Every key is a flag, too,");
  job.remark("which wins; `snug train --help` lists all of them.");
  for (const std::string& note : corpus.notes) job.remark(note);
  job.add(options, "model",
          fmt::format("{} of {} layers, made for texts of up to {} tokens", config.spec.architecture,
                      config.spec.layers.size(), config.spec.positions));
  job.add(options, "data",
          fmt::format("{} samples, {} tokens; the median has {}, the longest {}", samples, lengths.tokens,
                      lengths.sorted[lengths.sorted.size() / 2], lengths.longest()));
  if (!options.validation.empty())
    job.add(options, "validation", "held out, and evaluated at the end; --eval-every asks for more");
  const int64_t whole = lengths.within(options.sequence_length);
  job.add(
      options, "sequence_length",
      whole == samples
          ? "all samples fit whole into a block of so many tokens"
          : fmt::format("{} of {} samples fit whole into a block; the others are cut (long_samples: cut, split, drop)",
                        whole, samples));
  job.add(options, "method", method);
  if (options.given.contains("base_format")) job.add(options, "base_format", "how frozen weights are held");
  if (options.method == "lora") job.add(options, "lora_rank", "more learns more, and takes a little more memory");
  job.add(options, "batch_size", fmt::format("blocks a step: about {} step{} an epoch", steps, steps == 1 ? "" : "s"));
  if (options.epochs)
    job.add(options, "epochs",
            steps < kStepsAnEpoch ? "times through the data, which is small" : "times through the data");
  options.learning_rate = learning_rate(options);
  job.add(options, "learning_rate",
          options.given.contains("learning_rate") ? "as asked" : "what is usual for this method");
  job.add_others(options);
  if (options.found.block_patches > 0) remark_images(job, options, corpus.images.value().processor);
  write_text(out, job.text());
  fmt::print("{}", job.text());
  say(fmt::format("written to {}; snug train {} runs it\n", out.string(), out.string()));
  return 0;
}

}  // namespace snug
