// Fits a job to the images of its data: which parts of the model take part, in which shapes, and what becomes of files.
#pragma once

#include "api/corpus.h"
#include "api/job.h"
#include "plan/lowering/compile.h"

namespace snug {

// Returns the path of the module whose name a prefix of tensors spells: "model.visual.blocks" for
// "model.visual.blocks.".
std::string module_of(const std::string& prefix);

// Returns whether a parameter of a tower, or one of an adapter, is the projector's.
bool is_of_projector(std::string_view param, const ModelSpec& model);

// Returns the names of modules that the freeze_ options leave untrained where all weights are trained, in a model with
// a tower. UserError if they leave nothing.
std::vector<std::string> frozen_parts(const JobConfig& options, const ModelSpec& model);

// Returns the parameters of a tower that the options' model has and `model`, which is what a job takes of it, does not,
// and those of its adapters: an adapter may hold values for them.
std::vector<ParamSpec> parameters_left_out(const JobConfig& options, const ModelSpec& model, const PeftConfig& adapter);

// Notes in the options what was found in the data: bytes that are kept, what reading images takes, and the most patches
// of a block's images. It looks the images' files up for that, as data_fields() needs them too.
void note_found(Corpus& corpus, JobConfig& options, const Heartbeat& heartbeat = {});

// Returns the patches that stand for image_tokens. UserError for a model without a tower.
int64_t patches_of_tokens(const JobConfig& options);

// Returns the shapes of passes by patches (Cut::patches): the largest, one for few images, and, where nothing of the
// tower is trained, one for none.
std::vector<int64_t> patch_shapes(const JobConfig& options, const JobSpec& spec);

// Return how images become batches, in the second case of the data's, where it has some. What decoders find damaged is
// said by the notes, if there are any.
ImageBatches image_batches(const ImageInput& input, const ModelSpec& model, std::shared_ptr<ImageNotes> notes);
std::optional<ImageBatches> image_batches(const Corpus& corpus, const JobConfig& options);

}  // namespace snug
