#include "api/image_job.h"

#include <algorithm>

#include "base/cores.h"
#include "base/error.h"
#include "base/option_name.h"
#include "base/rounding.h"
#include "base/size_text.h"

namespace snug {
namespace {

constexpr int64_t kDecodingBytes = int64_t{256} << 20;  // docs/images.md says it

// Returns the most that a rank's images take at once as they are read: what an image's header and its file's size tell.
int64_t most_decoding_bytes(const Corpus& corpus) {
  if (!corpus.images) return 0;
  int64_t largest = 0, all = 0;
  const auto add = [&](const Dataset& dataset, const std::vector<uint32_t>& samples) {
    if (!dataset.has_images()) return;
    for (const uint32_t sample : samples)
      for (const DatasetImage& image : dataset.images(sample)) {
        const ImageTask task{.source = std::string(dataset.all_images().source(image)),
                             .pictures = std::vector<ImageTask::Picture>(image.step > 0 ? 2 : 1),
                             .width = image.width,
                             .height = image.height,
                             .video = image.step > 0};
        const int64_t bytes =
            task_bytes(corpus.images->processor, task) + static_cast<int64_t>(dataset.all_images().stored_bytes(image));
        largest = std::max(largest, bytes);
        all += bytes;
      }
  };
  add(corpus.training, corpus.training_samples);
  add(corpus.validation(), corpus.validation_samples);
  return std::min(all, std::max(largest, kDecodingBytes));
}

}  // namespace

std::string module_of(const std::string& prefix) { return prefix.substr(0, prefix.rfind('.')); }

bool is_of_projector(std::string_view param, const ModelSpec& model) {
  return model.tower && param.find(model.tower.projector_prefix) != param.npos;
}

std::vector<std::string> frozen_parts(const JobConfig& options, const ModelSpec& model) {
  if (!model.tower && options.freeze_language_model)
    user_error(
        "freeze_language_model: found true, expected false where the data has no images: nothing else is trained");
  if (!model.tower) return {};
  if (options.freeze_vision_tower && options.freeze_projector && options.freeze_language_model)
    user_error(
        "freeze_vision_tower, freeze_projector and freeze_language_model: found true for all three, expected a part "
        "that is trained");
  std::vector<std::string> frozen;
  if (options.freeze_vision_tower) {
    frozen.push_back(model.tower.prefix + model.tower.patches);
    frozen.push_back(module_of(model.tower.layer_prefix));
    for (const std::string* const tensor : {&model.tower.position_rows, &model.tower.final_norm.weight})
      if (!tensor->empty()) frozen.push_back(module_of(*tensor));
  }
  if (options.freeze_projector) frozen.push_back(module_of(model.tower.projector_prefix));
  if (options.freeze_language_model) {
    for (const std::string* tensor : {&model.embedding, &model.final_norm.weight, &model.layer_prefix})
      frozen.push_back(module_of(*tensor));
    if (!model.tied) frozen.push_back(module_of(model.head));
  }
  return frozen;
}

std::vector<ParamSpec> parameters_left_out(const JobConfig& options, const ModelSpec& model,
                                           const PeftConfig& adapter) {
  if (model.tower) return {};
  const ModelSpec whole = whole_model_config_of(options).spec;
  if (!whole.tower) return {};
  std::vector<ParamSpec> params = lora_parameters(whole, adapter, false).params;
  std::erase_if(params, [](const ParamSpec& param) { return !param.tower; });
  return params;
}

void note_found(Corpus& corpus, JobConfig& options, const Heartbeat& heartbeat) {
  for (Dataset* const dataset : {&corpus.training, &corpus.held_out_files}) dataset->look_up_image_sizes(heartbeat);
  options.found.teacher_bytes = teacher_bytes(corpus, options);
  options.found.disk_taken = corpus.cache_bytes + options.found.teacher_bytes;
  if (options.disk_memory && options.found.teacher_bytes > *options.disk_memory)
    throw CapacityError(fmt::format(
        "disk_memory: found {}, expected at least {}, for what the teacher says of the data; a smaller {} takes less",
        format_size(*options.disk_memory), format_size(options.found.teacher_bytes), option_name("teacher_top_k")));
  const auto most = [&](const Dataset& dataset, const std::vector<uint32_t>& samples) {
    if (!dataset.has_images() || samples.empty()) return int64_t{0};
    return Packer(dataset, samples, packing_options(options, heartbeat)).most_patches();
  };
  options.found.decoding_bytes = static_cast<uint64_t>(most_decoding_bytes(corpus));
  options.found.block_patches =
      std::max(most(corpus.training, corpus.training_samples), most(corpus.validation(), corpus.validation_samples));
}

int64_t patches_of_tokens(const JobConfig& options) {
  if (options.image_tokens == 0) return 0;
  const ModelSpec model = read_model_config(options.model, options.family).spec;
  if (!model.tower)
    user_error("image_tokens: found {}, expected 0: {} takes no images", options.image_tokens, options.model);
  if (options.image_tokens > options.sequence_length)
    user_error("image_tokens: found {}, expected at most sequence_length, {}", options.image_tokens,
               options.sequence_length);
  const LayerSpec& projector = model.projector();
  if (projector.queries == 0) return options.image_tokens * projector.joined_rows;
  // A picture's views have about as many patches as a square one has.
  return std::max(int64_t{1}, options.image_tokens / projector.queries) * model.tower.square_patches;
}

std::vector<int64_t> patch_shapes(const JobConfig& options, const JobSpec& spec) {
  if (options.found.block_patches == 0) return {};
  const int64_t multiple = spec.model.tower.patch_multiple(), most = round_up(options.found.block_patches, multiple),
                few = std::max(round_up(ceil_div(most, 4), multiple), spec.model.tower.least_patches);
  std::vector<int64_t> shapes{most};
  if (few < most) shapes.push_back(few);
  const auto trains_tower = [](const ParamSpec& param) { return param.tower && param.trainable; };
  if (std::ranges::none_of(spec.table.params, trains_tower)) shapes.push_back(0);
  return shapes;
}

ImageBatches image_batches(const ImageInput& input, const ModelSpec& model, std::shared_ptr<ImageNotes> notes) {
  const TowerSpec& tower = model.tower;
  return {.processor = input.processor,
          .tower = {.merge = tower.merge,
                    .window = tower.window,
                    .queries = model.projector().queries,
                    .position_side = tower.position_side,
                    .image_side = tower.image_side,
                    .class_rows = !tower.class_row.empty()},
          .rows = {.threads = usable_cores(),
                   .most_bytes = kDecodingBytes,
                   .note = [notes = std::move(notes)](const std::string& warning) {
                     if (notes) notes->add(warning);
                   }}};
}

std::optional<ImageBatches> image_batches(const Corpus& corpus, const JobConfig& options) {
  if (options.found.block_patches == 0) return std::nullopt;
  ImageBatches batches = image_batches(corpus.images.value(), model_config_of(options).spec, corpus.image_notes);
  batches.embeddings = corpus.embeddings.get();
  return batches;
}

}  // namespace snug
