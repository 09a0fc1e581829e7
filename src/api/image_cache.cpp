#include "api/image_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>

#include "api/cache.h"
#include "api/image_job.h"
#include "api/launch.h"
#include "api/use.h"
#include "base/disk.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/option_name.h"
#include "base/say.h"
#include "base/size_text.h"
#include "data/dataset_key.h"
#include "model/spec_fields.h"
#include "plan/lowering/fingerprint.h"
#include "train/embed_images.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kShare = 4;  // a quarter, unless all is asked for

// Returns the directory of the rows. Throws UserError if there is none, or none in which files can be made.
fs::path parent_of(const JobConfig& options) {
  const fs::path parent = cache_directory(options, "the rows of images are made once") / "images";
  const auto refuse = [&](const std::string& why) {
    user_error("{}: cannot be made ({}){}", parent.string(), why, other_cache());
  };
  try {
    if (::access((existing_part(parent) / ".").c_str(), W_OK | X_OK) != 0) refuse(std::strerror(errno));
  } catch (const fs::filesystem_error& error) {
    refuse(error.code().message());
  }
  return parent;
}

// Returns as one text what decides the rows of images besides their bytes.
std::string embedding_key(const JobSpec& spec, const ImageProcessor& processor, const Target& target,
                          const Heartbeat& heartbeat) {
  const auto is_tower = [&](size_t i) { return spec.table.params[i].tower; };
  Fields fields;
  add_fields(fields, kModelFields, spec.model);
  std::string key = fmt::format("weights {}\ncompute {}\nbase {}\non {}\n",
                                hex(hash_of_files(spec.sources, heartbeat, is_tower)), name(spec.numerics.compute),
                                name(spec.numerics.base), target.cuda() ? target.machine()->cards->name : "cpu");
  key += processor_key(processor);
  for (const Field& field : fields) key += fmt::format("{} {}\n", field.name, field.value);
  return key;
}

// Returns why a job's passes make the rows of their images themselves; empty if they need not.
std::string why_rows_change(const JobSpec& spec) {
  for (size_t i = 0; i < spec.table.params.size(); i++) {
    const ParamSpec& param = spec.table.params[i];
    if (!param.tower) continue;
    if (param.trainable || param.adapter) return fmt::format("'{}' is trained", param.name);
    if (!std::holds_alternative<TensorPlace>(spec.sources.params[i]))
      return fmt::format("'{}' is not read from the model's files as it is", param.name);
  }
  return "";
}

// Returns whether a run looks at its images more than once.
bool repeats(const Corpus& corpus, const JobConfig& options, const Heartbeat& heartbeat) {
  const BlockStream stream(corpus.training, corpus.training_samples, packing_options(options, heartbeat),
                           {1, 1, options.batch_size}, run_length(options));
  return stream.steps() > stream.steps_per_epoch();
}

struct KeptFile {
  fs::file_time_type used;
  fs::path path;
  uint64_t bytes = 0;
};

// Returns the files of rows of every key, those that were not used for longest first.
std::vector<KeptFile> kept_files(const fs::path& parent) {
  std::vector<KeptFile> files;
  std::error_code gone;  // processes remove files at any time
  for (fs::recursive_directory_iterator at(parent, gone), end; at != end; at.increment(gone)) {
    if (!at->is_regular_file(gone) || at->path().extension() == ".lock") continue;
    files.push_back({at->last_write_time(gone), at->path(), at->file_size(gone)});
    if (gone) files.pop_back();
  }
  std::ranges::sort(files, {}, &KeptFile::used);
  return files;
}

// Finds room for the rows of a job's images, and makes it.
class Room {
 public:
  // With `all` it may be all of what is free and of --disk-memory, else a share.
  Room(const ImageEmbeddings& embeddings, const fs::path& parent, const JobConfig& options, bool all)
      : parent_(parent), needed_(embeddings.bytes()), all_(all), files_(kept_files(parent)) {
    for (const NamedImage& image : embeddings.images()) own_.insert(embeddings.files().path_of(image.hash).string());
    uint64_t held = 0;
    for (const KeptFile& file : files_) held += file.bytes;
    const uint64_t share = all ? 1 : kShare;
    there_ = (free_bytes(existing_part(parent)) + held) / share;
    allowed_ = options.disk_memory.value_or(UINT64_MAX) / share;
  }

  // Returns why there is none; empty if there is.
  std::string refused() const {
    if (needed_ <= most()) return "";
    return fmt::format(
        "their rows take {}, and {}{} is {}", format_size(needed_), all_ ? "" : "a quarter of ",
        allowed_ < there_ ? option_name("disk_memory") : fmt::format("what {} has free", parent_.string()),
        format_size(most()));
  }

  // Notes that the job's files are used now, and removes others that no run uses, if all would take more than is free.
  // Returns whether there is room then.
  bool make() const {
    std::error_code ignored;
    uint64_t others = 0;
    for (const KeptFile& file : files_)
      if (own_.contains(file.path.string()))
        fs::last_write_time(file.path, fs::file_time_type::clock::now(), ignored);
      else
        others += file.bytes;
    std::map<fs::path, bool> used;  // by directory
    for (const KeptFile& file : files_) {
      if (needed_ + others <= most()) break;
      if (own_.contains(file.path.string())) continue;
      const auto [of_directory, fresh] = used.try_emplace(file.path.parent_path());
      if (fresh) of_directory->second = FileLock::is_used(of_directory->first);
      if (of_directory->second) continue;
      fs::remove(file.path, ignored);
      others -= file.bytes;
    }
    return needed_ + others <= most();
  }

 private:
  uint64_t most() const { return std::min(there_, allowed_); }

  fs::path parent_;
  uint64_t needed_, there_ = 0, allowed_ = 0;
  bool all_;
  std::vector<KeptFile> files_;
  std::unordered_set<std::string> own_;
};

// Returns all images of the data that trains and of what is held out, with their hashes.
std::shared_ptr<ImageEmbeddings> images_of(const Corpus& corpus, const JobConfig& options, EmbeddingFiles files,
                                           const Heartbeat& heartbeat) {
  auto embeddings = std::make_shared<ImageEmbeddings>(std::move(files));
  const PackingOptions packing = packing_options(options, heartbeat);
  embeddings->add(corpus.training, Packer(corpus.training, corpus.training_samples, packing).documents(), heartbeat);
  if (corpus.validates())
    embeddings->add(corpus.validation(), Packer(corpus.validation(), corpus.validation_samples, packing).documents(),
                    heartbeat);
  return embeddings;
}

std::string images_text(size_t count) { return fmt::format("{} image{}", count, count == 1 ? "" : "s"); }

// Decides for this process; a cache without embeddings says why in its line.
ImageCache find(const JobSpec& spec, const Corpus& corpus, const JobConfig& options, const Target& target,
                PlanMode mode, const Heartbeat& heartbeat) {
  const auto without = [](std::string_view why) {
    return ImageCache{.line = fmt::format("image cache: {}; passes make the rows of their images themselves", why)};
  };
  const bool asked = options.image_cache == "on";
  const bool often = asked || repeats(corpus, options, heartbeat);
  const std::string once =
      fmt::format("the data is gone through once, which makes each row once ({} on keeps them for later runs)",
                  option_name("image_cache"));
  fs::path parent;
  try {
    parent = parent_of(options);
  } catch (const UserError& error) {
    if (asked) user_error("image_cache: {}", error.what());
    return without(often ? error.what() : once);
  }
  EmbeddingFiles files(parent, embedding_key(spec, corpus.images.value().processor, target, heartbeat),
                       spec.numerics.compute, spec.table[spec.table.embedding].shape.cols());
  if (!often && !fs::is_directory(files.directory())) return without(once);
  const auto embeddings = images_of(corpus, options, std::move(files), heartbeat);
  const std::vector<NamedImage> missing = embeddings->missing();
  if (!often && !missing.empty()) return without(once);
  uint64_t missing_bytes = 0;
  for (const NamedImage& image : missing) missing_bytes += embeddings->files().bytes_of(image.rows);
  const Room room(*embeddings, parent, options, asked);
  std::string refused = room.refused();
  if (refused.empty() && mode == PlanMode::Run) try {
      const FileLock alone = lock_in_cache(parent / "room");
      if (room.make())
        embeddings->use_files();
      else
        refused = fmt::format("their rows take {}, and other runs use what lies in {}",
                              format_size(embeddings->bytes()), parent.string());
    } catch (const UserError& error) {
      if (asked) throw;
      return without(error.what());
    }
  if (!refused.empty()) {
    if (asked)
      throw CapacityError(fmt::format("image_cache: {}; {} names another disk", refused, option_name("cache_dir")));
    return without(refused);
  }
  const size_t all = embeddings->images().size();
  return {
      embeddings, missing.size(), missing_bytes,
      fmt::format("image cache: of {}, whose rows take {}, {} are in {}", images_text(all),
                  format_size(embeddings->bytes()), all - missing.size(), embeddings->files().directory().string())};
}

// Returns the ranks that share a directory with this one, those of its machine.
EmbeddingShare ranks_of_machine(Comm* comm, int place) {
  if (!comm) return {};
  const uint64_t here = number_of_machine();
  const std::span<const uint64_t> machines = comm->allgather_host(here, "the machines of ranks");
  return {place, static_cast<int>(std::ranges::count(machines, here))};
}

}  // namespace

ImageCache find_image_cache(const JobSpec& spec, const Corpus& corpus, const JobConfig& options, const Target& target,
                            PlanMode mode, Comm* launched) {
  if (spec.cut.patches.empty() || options.image_cache == "off" || !corpus.images) return {};
  if (const std::string why = why_rows_change(spec); !why.empty()) {
    if (options.image_cache == "on")
      user_error("image_cache: found on, expected auto or off: the rows that are made of images change, as {}", why);
    return {};
  }
  if (spec.sources.assumed)
    return {.line = "image cache: the model has no weight files here, by which kept rows are named; planned without"};
  ImageCache cache = find(spec, corpus, options, target, mode, heartbeat_of(launched));
  // Each machine has its own files, and its own disk.
  const bool everywhere = least_of_ranks(launched, cache.embeddings ? 1 : 0) != 0;
  if (!everywhere && cache.embeddings)
    return {.line = "image cache: another machine goes on without, so this one does"};
  cache.missing = static_cast<size_t>(~least_of_ranks(launched, ~uint64_t{cache.missing}));
  return cache;
}

void use_image_cache(const ImageCache& cache, JobSpec& spec, Corpus& corpus, JobConfig& options) {
  if (!cache.line.empty()) corpus.notes.push_back(cache.line);
  if (!cache.embeddings) return;
  corpus.embeddings = cache.embeddings;
  options.found.given_embeddings = spec.given_embeddings = true;
  options.found.disk_taken += cache.embeddings->bytes();
  options.found.disk_wanted += cache.missing_bytes;
}

std::optional<Planned> plan_embedding(const ImageCache& cache, const JobSpec& spec, const JobConfig& options,
                                      const Target& target, PlanMode mode, Comm* launched) {
  if (!cache.embeddings || cache.missing == 0) return std::nullopt;
  JobConfig other = options;
  for (std::string* none : {&other.adapter, &other.found.given_adapter}) none->clear();
  other.found.new_tokens.clear();
  other.objective = JobConfig().objective;
  other.replicas = 1;
  other.found.given_embeddings = false;
  JobSpec embedding = make_job(other, Purpose::Embed);
  embedding.numerics = spec.numerics;
  embedding.cut.micro_batch = 1;
  embedding.cut.patches = {spec.cut.patches[0]};
  if (mode == PlanMode::Run) return plan_use(std::move(embedding), other, launched, false);
  return plan_job(std::move(embedding), other, target, mode);
}

bool embed_before(const Planned& planned, const ImageCache& cache, const Corpus& corpus, const JobConfig& options,
                  int rank, int place, Comm* comm, const std::function<bool()>& interrupted) {
  const auto begin = std::chrono::steady_clock::now();
  Session session = rank_session(planned, options, rank, place, comm);
  session.load();
  const ImageBatches batches = image_batches(corpus.images.value(), planned.spec.model, corpus.image_notes);
  const EmbeddedImages done =
      embed_images(session, *cache.embeddings, batches, ranks_of_machine(comm, place), interrupted);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  if (rank == 0)
    say(fmt::format(
        "image cache: the rows of {} were made in {} pass{}, {:.1f} s{}\n",
        images_text(static_cast<size_t>(done.images)), done.passes, done.passes == 1 ? "" : "es", spent.count(),
        done.interrupted ? "; interrupted before the first step: the same command goes on from there" : ""));
  return done.interrupted;
}

}  // namespace snug
