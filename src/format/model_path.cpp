#include "format/model_path.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/looked_at.h"
#include "base/option_name.h"
#include "format/hf_config.h"
#include "format/json.h"
#include "format/peft.h"

namespace snug {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kModelConfig = "config.json";
constexpr uint64_t kMaxRefBytes = 256;

// Says what is looked for: a model or an adapter.
struct Wanted {
  std::string_view field, marker, noun, other_field, other_marker, other_noun;

  std::string option() const { return option_name(field); }
  std::string other_option() const { return option_name(other_field); }
};
constexpr Wanted kModel{"model", kModelConfig, "a model directory", "adapter", kPeftConfigFile, "an adapter"};
constexpr Wanted kAdapter{"adapter", kPeftConfigFile, "an adapter's directory", "model", kModelConfig, "a whole model"};

// Returns names in a directory, in order; none if it cannot be listed.
std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  std::ranges::sort(names);
  return names;
}

std::string listed(const std::vector<std::string>& names) {
  if (names.empty()) return "nothing";
  constexpr size_t kShown = 3;
  const std::span<const std::string> shown(names.data(), std::min(names.size(), kShown));
  const std::string text = fmt::format("'{}'", fmt::join(shown, "', '"));
  return names.size() > kShown ? fmt::format("{} and {} more", text, names.size() - kShown) : text;
}

// Returns the number at the end of "checkpoint-500"; nothing for other names.
std::optional<uint64_t> checkpoint_step(std::string_view name) {
  constexpr std::string_view kPrefix = "checkpoint-";
  if (!name.starts_with(kPrefix) || name.size() == kPrefix.size() || name.size() > kPrefix.size() + 18) return {};
  uint64_t step = 0;
  for (const char c : name.substr(kPrefix.size())) {
    if (c < '0' || c > '9') return {};
    step = 10 * step + static_cast<uint64_t>(c - '0');
  }
  return step;
}

// Returns folders within `directory` that hold `marker`.
std::vector<std::string> folders_with(const fs::path& directory, std::string_view marker) {
  std::vector<std::string> found;
  for (const std::string& name : names_in(directory))
    if (is_file(directory / name / marker)) found.push_back(name);
  return found;
}

// Returns "org/name" for a folder "models--org--name" of the hub's cache.
std::optional<std::string> hub_id_of(std::string_view folder) {
  constexpr std::string_view kPrefix = "models--";
  if (!folder.starts_with(kPrefix)) return {};
  std::string id(folder.substr(kPrefix.size()));
  if (const size_t at = id.find("--"); at != id.npos) id.replace(at, 2, "/");
  return id;
}

// Returns which of the folders to give instead, and what they are: the run's own, the last checkpoint, the only one.
std::optional<std::string> folder_meant(const fs::path& directory, std::string_view option, std::string_view marker) {
  const std::vector<std::string> folders = folders_with(directory, marker);
  if (folders.empty()) return {};
  const auto advice = [&](std::string_view what, const std::string& name) {
    return fmt::format("{} {}: {} {}", what, (directory / name).string(), option, (directory / name).string());
  };
  const bool run = is_file(directory / "job.yaml") && is_file(directory / "plan.json");
  for (const char* own : {"model", "adapter"})
    if (run && std::ranges::find(folders, own) != folders.end())
      return advice(fmt::format("is the directory of a run, and the {} is in it, in", own), own);
  const auto last = std::ranges::max_element(folders, {}, checkpoint_step);
  if (checkpoint_step(*last)) return advice("holds a trainer's checkpoints, the last of them", *last);
  if (folders.size() == 1) return advice(fmt::format("holds no {}, which lies in", marker), folders[0]);
  return fmt::format("holds no {}, which lies in its folders {}: {} takes one of them", marker, listed(folders),
                     option);
}

std::optional<std::string> cache_meant(const fs::path& directory, const Wanted& wanted) {
  const fs::path snapshots = directory / "snapshots";
  std::vector<std::string> ids;
  if (const auto id = hub_id_of(fs::absolute(directory).lexically_normal().filename().string()))
    if (fs::is_directory(snapshots)) {
      const std::vector<std::string> with = folders_with(snapshots, wanted.marker);
      if (with.empty()) return fmt::format("is what Hugging Face's cache has of '{}', without {}", *id, wanted.marker);
      return fmt::format("is Hugging Face's cache of '{}', whose snapshot is {}: {} {}", *id,
                         (snapshots / with.back()).string(), wanted.option(), (snapshots / with.back()).string());
    }
  for (const std::string& name : names_in(directory))
    if (const auto id = hub_id_of(name)) ids.push_back(*id);
  if (ids.empty()) return {};
  return fmt::format("is a cache of Hugging Face's, which holds {}: {} takes such an id", listed(ids), wanted.option());
}

std::vector<std::string> ending(const std::vector<std::string>& names, std::string_view suffix) {
  std::vector<std::string> found;
  std::ranges::copy_if(names, std::back_inserter(found), [&](const std::string& n) { return n.ends_with(suffix); });
  return found;
}

// Returns the model for which an adapter was made, as its configuration says.
std::string base_of(const fs::path& adapter) {
  try {
    const std::string base = read_peft_config(adapter).base_model;
    if (!base.empty()) return fmt::format("'{}'", base);
  } catch (const UserError&) {  // other errors in it are reported when it is used
  }
  return "that of its base";
}

// Refuses a directory with a training checkpoint of DeepSpeed, whose weights are in parts of its own.
void refuse_deepspeed(const fs::path& directory, const std::vector<std::string>& names) {
  constexpr std::string_view kScript = "zero_to_fp32.py";
  const auto step = std::ranges::find_if(names, [](const std::string& n) { return n.starts_with("global_step"); });
  const bool script = std::ranges::find(names, kScript) != names.end();
  if (step == names.end() && !script) return;
  user_error(
      "{}: found '{}', a training checkpoint of DeepSpeed, expected model.safetensors: {} {} makes one file of its "
      "parts",
      directory.string(), step == names.end() ? kScript : *step,
      script ? "the program beside it," : "DeepSpeed's program", kScript);
}

// Throws UserError that says what lies in a directory without the wanted marker.
[[noreturn]] void refuse_directory(const fs::path& directory, const Wanted& wanted) {
  const std::string path = directory.string();
  const std::vector<std::string> names = names_in(directory);
  const bool model = wanted.marker == kModelConfig;
  std::error_code ignored;
  if (fs::is_symlink(directory / wanted.marker, ignored))
    user_error("{}: {} is a link to '{}', where nothing is: fetch it again", path, wanted.marker,
               fs::read_symlink(directory / wanted.marker, ignored).string());
  if (is_file(directory / wanted.other_marker)) {
    if (model)
      user_error("{}: is an adapter (it holds {}), expected a model directory: {} {} with {} {}", path, kPeftConfigFile,
                 option_name("adapter"), path, option_name("model"), base_of(directory));
    user_error("{}: is a whole model (config.json is there, no adapter_config.json), expected an adapter: {} {}", path,
               option_name("model"), path);
  }
  if (const auto meant = folder_meant(directory, wanted.option(), wanted.marker)) user_error("{}: {}", path, *meant);
  if (const auto meant = folder_meant(directory, wanted.other_option(), wanted.other_marker))
    user_error("{}: found {}, expected {}: {}", path, wanted.other_noun, wanted.noun, *meant);
  if (const auto meant = cache_meant(directory, wanted)) user_error("{}: {}", path, *meant);
  if (const auto files = ending(names, ".gguf"); model && !files.empty())
    user_error("{}: found {}, expected a model directory; {} {} imports a GGUF file", path, listed(files),
               option_name("model"), (directory / files[0]).string());
  if (model && (is_file(directory / "params.json") || !ending(names, ".pth").empty()))
    user_error(
        "{}: found {}, Meta's own layout, expected Hugging Face's, with config.json: transformers' "
        "convert_llama_weights_to_hf.py makes one",
        path, listed(names));
  if (model) refuse_deepspeed(directory, names);
  if (names.empty()) user_error("{}: is empty, expected {}, with {}", path, wanted.noun, wanted.marker);
  user_error("{}: found {}, but no {}, expected {}", path, listed(names), wanted.marker, wanted.noun);
}

// ---- Ids of the hub -------------------------------------------------------------------------------------------------

bool may_be_hub_id(std::string_view text) {
  if (text.empty() || std::ranges::count(text, '/') != 1 || text.ends_with(".gguf")) return false;
  const auto letter = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); };
  const auto part = [&](std::string_view p) {
    return !p.empty() && letter(p[0]) && p.find("--") == p.npos &&
           std::ranges::all_of(p, [&](char c) { return letter(c) || c == '-' || c == '_' || c == '.'; });
  };
  const size_t slash = text.find('/');
  return part(text.substr(0, slash)) && part(text.substr(slash + 1));
}

// Returns where huggingface_hub keeps what it fetched; empty if there is no home.
fs::path hub_cache() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value ? value : "");
  };
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (!set(name).empty()) return set(name);
  if (!set("HF_HOME").empty()) return set("HF_HOME") / "hub";
  if (!set("XDG_CACHE_HOME").empty()) return set("XDG_CACHE_HOME") / "huggingface" / "hub";
  return set("HOME").empty() ? fs::path() : set("HOME") / ".cache" / "huggingface" / "hub";
}

// Returns the snapshot of branch `main`, or the only one.
fs::path find_snapshot(const std::string& id, const Wanted& wanted) {
  const fs::path cache = hub_cache();
  std::string folder = "models--" + id;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path repository = cache / folder, snapshots = repository / "snapshots", ref = repository / "refs" / "main";
  if (!fs::is_directory(snapshots))
    user_error(
        "{}: found no directory of that name{}, and nothing of that id in Hugging Face's cache ({}); 'hf download "
        "{}' fetches what the hub has of it, {} then takes the id or the directory",
        id, looked_at(id), cache.string(), id, wanted.option());
  const std::vector<std::string> all = names_in(snapshots);
  fs::path snapshot;
  if (is_file(ref)) {
    std::string hash = read_text(ref, kMaxRefBytes);
    hash.erase(hash.find_last_not_of(" \r\n") + 1);
    if (std::ranges::find(all, hash) != all.end()) snapshot = snapshots / hash;
  } else if (all.size() == 1) {
    snapshot = snapshots / all[0];
  }
  if (snapshot.empty())
    user_error("{}: found {} in {}, none of them branch main's; 'hf download {}' fetches that, or {} names a snapshot",
               id, all.empty() ? "no snapshot" : "snapshots " + listed(all), snapshots.string(), id, wanted.option());
  if (!is_file(snapshot / wanted.marker) && wanted.marker == "config.json" && is_file(snapshot / "adapter_config.json"))
    user_error(
        "{}: is an adapter (adapter_config.json is there, no config.json), expected a model: {} {}, and {} its base",
        id, option_name("adapter"), id, option_name("model"));
  if (!is_file(snapshot / wanted.marker))
    user_error("{}: found {} in {}, but no {}; 'hf download {}' fetches what is missing", id,
               listed(names_in(snapshot)), snapshot.string(), wanted.marker, id);
  return snapshot;
}

// Refuses a file where a directory is expected.
[[noreturn]] void refuse_file(const fs::path& file, const Wanted& wanted) {
  File::open_read(file, IoMode::Buffered);  // a Git LFS pointer, or an unreadable file, is reported here
  const fs::path parent = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (is_file(parent / wanted.marker))
    user_error("{}: is a file, expected {}: {} {}", file.string(), wanted.noun, wanted.option(), parent.string());
  user_error("{}: is a file, expected {}", file.string(), wanted.noun);
}

// Refuses what is spelt as other programs take it.
void refuse_elsewhere(const std::string& given, const Wanted& wanted) {
  if (const size_t scheme = given.find("://"); scheme != given.npos) {
    std::string id = given.substr(scheme + 3);
    id.erase(0, std::min(id.find('/'), id.size()));
    id.erase(0, id.find_first_not_of('/') == id.npos ? id.size() : id.find_first_not_of('/'));
    const size_t first = id.find('/');
    if (first != id.npos) id.resize(std::min(id.find('/', first + 1), id.size()));
    user_error(
        "{}: is an address, expected {} here, or an id (org/name) of which Hugging Face's cache has a copy{}", given,
        wanted.noun,
        may_be_hub_id(id) ? fmt::format(": 'hf download {}' fetches it, {} {} takes it", id, wanted.option(), id) : "");
  }
  if (const size_t at = given.find('@'); at != given.npos && may_be_hub_id(given.substr(0, at)))
    user_error(
        "{}: found a revision behind the id, expected the id alone, of which branch main is read; 'hf download {} "
        "--revision {} --local-dir DIR' fetches another, and {} DIR takes it",
        given, given.substr(0, at), given.substr(at + 1), wanted.option());
}

// Returns advice on a name without an organisation, as some of the hub's oldest models have none.
std::string bare_name_advice(const std::string& given, const Wanted& wanted) {
  if (!may_be_hub_id("a/" + given)) return "";
  const fs::path snapshots = hub_cache() / ("models--" + given) / "snapshots";
  std::error_code ignored;
  if (!fs::is_directory(snapshots, ignored))
    return fmt::format(
        "; where it is a model of the hub, 'hf download {} --local-dir DIR' fetches it, and {} DIR takes it", given,
        wanted.option());
  const std::vector<std::string> with = folders_with(snapshots, wanted.marker);
  return with.empty() ? ""
                      : fmt::format("; Hugging Face's cache has a model of that name: {} {}", wanted.option(),
                                    (snapshots / with.back()).string());
}

fs::path find_directory(const std::string& given, const Wanted& wanted) {
  const fs::path path = given;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    if (!is_file(path / wanted.marker)) refuse_directory(path, wanted);
    return path;
  }
  if (fs::exists(path, ignored)) refuse_file(path, wanted);
  if (fs::is_symlink(path, ignored))
    user_error("{}: is a link to '{}', where nothing is", given, fs::read_symlink(path, ignored).string());
  refuse_elsewhere(given, wanted);
  if (may_be_hub_id(given)) return find_snapshot(given, wanted);
  const bool gguf = wanted.field == kModel.field && std::string_view(given).ends_with(".gguf");
  user_error("{}: found nothing there{}, expected {}, with {}{}", given, looked_at(given), wanted.noun, wanted.marker,
             gguf ? ", or a GGUF file ('snug import' makes a directory of one)" : bare_name_advice(given, wanted));
}

}  // namespace

bool is_gguf_file(const fs::path& path) {
  constexpr std::string_view kMagic = "GGUF";
  if (!is_file(path)) return false;
  const File file = File::open_read(path, IoMode::Buffered);
  std::string head(std::min<uint64_t>(file.size(), kMagic.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(head)));
  return head == kMagic || path.extension() == ".gguf";
}

fs::path find_model_directory(const std::string& given) { return find_directory(given, kModel); }
fs::path find_adapter_directory(const std::string& given) { return find_directory(given, kAdapter); }

void refuse_other_weights(const fs::path& model) {
  const std::vector<std::string> names = names_in(model);
  const std::string path = model.string();
  for (const auto& [stem, tail, index] : {std::tuple("model-", ".safetensors", "model.safetensors.index.json"),
                                          std::tuple("pytorch_model-", ".bin", "pytorch_model.bin.index.json")}) {
    std::vector<std::string> shards = ending(names, tail);
    std::erase_if(shards,
                  [start = stem](const std::string& n) { return !n.starts_with(start) || n.find("-of-") == n.npos; });
    if (!shards.empty())
      user_error(
          "{}: found the shards {}, but not their index {}, which says what lies in which; fetch it from where "
          "they are from",
          path, listed(shards), index);
  }
  for (const std::string& name : names) {
    std::error_code ignored;
    const bool weights = std::ranges::any_of(std::array{".safetensors", ".bin", ".pth", ".pt", ".h5", ".msgpack"},
                                             [&](const char* tail) { return name.ends_with(tail); });
    if (weights && fs::is_symlink(model / name, ignored) && !is_file(model / name))
      user_error("{}: {} is a link to '{}', where nothing is: fetch it again", path, name,
                 fs::read_symlink(model / name, ignored).string());
  }
  if (is_file(model / kPeftConfigFile) && !ending(names, "adapter_model.safetensors").empty())
    user_error("{}: holds an adapter's weights beside config.json, and no model's: {} {}", path, option_name("adapter"),
               path);
  if (const auto files = ending(names, ".gguf"); !files.empty())
    user_error("{}: found {} beside config.json, expected model.safetensors; {} {} imports a GGUF file", path,
               listed(files), option_name("model"), (model / files[0]).string());
  for (const char* tail : {".safetensors", ".bin", ".pth", ".pt", ".h5", ".msgpack", ".onnx", ".onnx_data", ".distcp",
                           ".ckpt", ".ckpt.index", ".tflite", ".ot", ".npz", ".nemo", ".engine", ".mlmodel"}) {
    std::vector<std::string> files = ending(names, tail);
    std::erase_if(files, [](const std::string& n) { return n == "training_args.bin"; });
    if (!files.empty())
      user_error(
          "{}: found {}, expected weights under the names model.safetensors or pytorch_model.bin, or their shards",
          path, listed(files));
  }
  refuse_deepspeed(model, names);
  if (is_file(model / "training_args.bin"))
    user_error(
        "{}: found 'training_args.bin', which holds a trainer's settings, and no weights, expected model.safetensors: "
        "save_model() of the trainer writes it",
        path);
}

}  // namespace snug
