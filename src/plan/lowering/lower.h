// Emits the programs of evaluation and generation, and what they share with training passes.
#pragma once

#include "model/decoder_layer.h"
#include "model/head.h"
#include "plan/lowering/job.h"

namespace snug {

// Emits one pass of evaluation. It hands the summed loss of each rank, by rank, to the host (HostJob::TakeLoss), which
// adds them one after the other: that is the sum of one rank that makes as many passes. Of an objective that weighs
// rows it hands over the cross-entropy of every row instead (HostJob::TakeScores), and of one with a teacher its
// distances.
void lower_evaluation(const JobContext& job, ProgramId program, const Cut& cut, int shape);
// Emits such a pass by the reference: the model, without its adapters unless the objective says otherwise. A teacher
// hands over its most likely tokens of every row (HostJob::KeepTeacher).
void lower_scoring(const JobContext& job, ProgramId program, const Cut& cut, int shape);

// Emits the work of the host on the cross-entropies of a pass's rows, [T] fp32 on each rank (HostJob::WeighRows).
RowWeights emit_weighing(const JobContext& job, Emitter& e, const Operand& losses, int64_t pass);

// Emits the filling of what a teacher says of a pass's rows by the host, and its copy to the device.
TeacherRows emit_teacher(const JobContext& job, Emitter& e, int64_t tokens, int64_t pass = 0);
// Copies numbers of a pass's rows, of every rank, to the host: [ranks, n], to be read.
Operand rows_on_host(const JobContext& job, Emitter& e, const Operand& rows);

// Emits generation: at most `tokens` new tokens go through the model, over the caches of earlier ones, and the logits
// of one of them go to the host. Caches must have room for all `tokens`. Some of the tokens may stand for `tower_rows`.
void lower_generation(const JobContext& job, ProgramId program, int64_t tokens, std::span<const Operand> caches,
                      const std::optional<Operand>& tower_rows = std::nullopt);
// Emits a tower over the images of a prompt, and returns where its rows are kept.
Operand lower_looking(const JobContext& job, ProgramId program, int64_t patches);
// Emits a tower over images, whose rows go to the host (HostJob::TakeEmbeddings).
void lower_embedding(const JobContext& job, ProgramId program, const Cut& cut);
// Returns one cache for each layer, for at most `positions` tokens.
std::vector<Operand> make_caches(const JobContext& job, int64_t positions);

// Emits the filling of the batch of the program's pass number `pass`, of a shape of the cut, by the host and its copy
// to the device.
BatchBuffers emit_batch(const JobContext& job, Emitter& e, const Cut& cut, int shape, int64_t pass = 0);
HeadParams head_params(const JobContext& job);
LayerContext layer_context(const JobContext& job, const Cut& cut, const BatchBuffers& batch, size_t layer);

// Emits the filling of `patches` patches by the host and their copy to the device.
ImageBuffers emit_images(const JobContext& job, Emitter& e, int64_t patches, int64_t pass = 0);
// Emits the filling of rows that a tower made of so many patches, by the host, and their copy to the device.
EmbeddingBuffers emit_embeddings(const JobContext& job, Emitter& e, int64_t patches, int64_t pass = 0);
// Records that these take the places of rows of the text's embedding.
void splice_given(Builder& b, Value x, const EmbeddingBuffers& embeddings);
LayerContext tower_context(const JobContext& job, const ImageBuffers& images, int64_t blocks, size_t layer);
// Records the rows of the tower's residual stream that pixels make.
Value patch_rows(const TowerSpec& spec, Builder& tower, const ParamTable& table, const ImageBuffers& images);

// Returns the sum of a [1] fp32 value over ranks, in the order of their numbers; with one rank, the value itself.
Operand sum_over_ranks(const JobContext& job, Emitter& e, std::string_view what, const Operand& value);
// Copies an operand to a new buffer of the host space, for HostTask ops to read.
Operand copy_to_host(Emitter& e, std::string_view what, const Operand& operand);

}  // namespace snug
