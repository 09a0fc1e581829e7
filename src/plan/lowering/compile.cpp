#include "plan/lowering/compile.h"

#include <algorithm>

#include "base/hash.h"
#include "plan/lowering/average.h"
#include "plan/lowering/load.h"
#include "plan/lowering/lower.h"
#include "program/pack.h"
#include "program/sync.h"

namespace snug {
namespace {

constexpr uint64_t kShardBytes = 5'000'000'000;  // of one file of a written model, as transformers cuts it

// Lists the programs that may follow each task, of those that the job has. An update leaves the state flushed, and so
// does every program that is not a pass; passes are followed only by passes and the update. Reapply comes right after
// the update, and is followed by whatever may follow that.
const std::map<Task, std::vector<Task>>& successors() {
  static const std::map<Task, std::vector<Task>> table{
      {Task::Load,
       {Task::Restore, Task::Pass, Task::First, Task::Evaluate, Task::Score, Task::Save, Task::Export, Task::Prefill,
        Task::Decode, Task::Look, Task::Embed}},
      {Task::Restore, {Task::Pass, Task::First, Task::Evaluate, Task::Score, Task::Save, Task::Export}},
      {Task::Pass, {Task::Update}},
      {Task::First, {Task::Middle, Task::Last}},
      {Task::Middle, {Task::Middle, Task::Last}},
      {Task::Last, {Task::Update}},
      {Task::PassDeferred, {Task::Update}},
      {Task::FirstDeferred, {Task::Middle, Task::Last}},
      {Task::Update, {Task::Pass, Task::First, Task::Evaluate, Task::Save, Task::Export}},
      {Task::Reapply, {Task::Pass, Task::First, Task::Evaluate, Task::Save, Task::Export}},
      {Task::Flush, {Task::Pass, Task::First, Task::Evaluate, Task::Save, Task::Export}},
      {Task::Evaluate, {Task::Evaluate, Task::Pass, Task::First, Task::Save, Task::Export}},
      {Task::Score, {Task::Score, Task::Restore, Task::Pass, Task::First, Task::Evaluate, Task::Save, Task::Export}},
      {Task::ToAverage, {Task::Evaluate, Task::Save, Task::Export}},
      {Task::FromAverage, {Task::Pass, Task::First}},
      {Task::Save, {Task::Save, Task::Pass, Task::First, Task::Evaluate, Task::Export}},
      {Task::Export, {Task::Save}},
      {Task::Prefill, {Task::Prefill, Task::Decode, Task::Look}},
      {Task::Decode, {Task::Decode, Task::Prefill, Task::Look}},
      {Task::Look, {Task::Look, Task::Prefill, Task::Decode}},
      {Task::Embed, {Task::Embed}},
  };
  return table;
}

// Returns the task of a pass that is a program of its own.
Task task_of(PassPosition position) {
  switch (position) {
    case PassPosition::First:
      return Task::First;
    case PassPosition::Middle:
      return Task::Middle;
    case PassPosition::Last:
      return Task::Last;
    case PassPosition::Only:
      break;
  }
  return Task::Pass;
}

// Hashes what ranks do together. Their programs differ in what they read and where parts lie, never in collectives.
uint64_t hash_collectives(const ProgramSet& set) {
  std::string text;
  for (const Program& program : set.programs) {
    text += program.name;
    for (const Op& op : program.ops) {
      if (!is_collective(op.attrs)) continue;
      text += fmt::format(" {} {}", kind(op.attrs), index(op.lane));
      if (const auto* gather = std::get_if<AllGather>(&op.attrs)) text += fmt::format(" {}", int(gather->ranks));
      for (const Operand& operand : op.operands)
        text += fmt::format(" {} {}", name(operand.dtype), operand.shape.count());
    }
  }
  return hash_of(text);
}

class Compiler {
 public:
  Compiler(const JobSpec& spec, const OpFacts& facts)
      : spec_(spec),
        facts_(facts),
        layout_(spec.table, {spec.cut.ranks, spec.strategy.replicas, spec.rank}, forms_of(spec)),
        storage_(result_.set, spec.table, layout_, spec.numerics, spec.strategy, trains()),
        job_{result_.set,
             facts,
             spec_.model,
             spec_.table,
             storage_,
             spec_.numerics,
             spec_.strategy,
             spec_.objective,
             spec_.given_embeddings,
             spec_.new_adapter,
             make_rope_table("rope_table", spec_.model.rope),
             make_local_rope_table(),
             make_query_rope_table(),
             make_tower_rope_table()} {
    check(spec.cut.ranks % spec.strategy.replicas == 0, "{} replicas of {} ranks", spec.strategy.replicas,
          spec.cut.ranks);
    check(!spec.strategy.update_in_backward || spec.numerics.max_grad_norm == 0,
          "updates in the backward, which do not know the norm, and gradients clipped to {}",
          spec.numerics.max_grad_norm);
    check(!spec.strategy.update_in_backward || spec.strategy.reduce_in_backward,
          "updates in the backward of gradients that are reduced after it");
    check(spec.numerics.optimizer != Optimizer::ScheduleFreeAdamW || !spec.objective.scores_others(),
          "replies scored before each step by the average of schedule-free training, not by what is trained");
    check(!updates_matrices(spec.numerics.optimizer) || !spec.strategy.speculate,
          "updates of whole matrices that speculate");
    check(!updates_matrices(spec.numerics.optimizer) || !spec.strategy.update_in_backward || spec.cut.ranks == 1,
          "updates of whole matrices, which ranks gather, within the backward");
    check(!spec.strategy.update_in_backward || !spec.strategy.speculate,
          "updates in the backward speculate on nothing");
    for (const ParamSpec& param : spec.table.params)
      check(!(spec.given_embeddings && param.tower) || !(param.trainable || param.adapter),
            "'{}' is trained, and so are the rows of images that are given", param.name);
  }

  Compiled run() {
    if (!spec_.step_only) lower_load(job_, add(Task::Load), spec_.sources.params, spec_.sources.file_bytes);
    switch (spec_.purpose) {
      case Purpose::Train:
        lower_step();
        if (!spec_.step_only) lower_around_steps();
        break;
      case Purpose::Evaluate:
        lower_evaluations();
        lower_scorings();
        result_.passes = {Task::Evaluate};
        break;
      case Purpose::Generate:
        lower_generating();
        break;
      case Purpose::Merge:
        export_as(whole_model());
        break;
      case Purpose::Embed:
        lower_embedding(job_, add(Task::Embed), spec_.cut);
        result_.passes = {Task::Embed};
        break;
    }
    link();
    note_owned();
    result_.plan = pack(result_.set, facts_.alignment());
    sync(result_.set, result_.plan);
    if (spec_.step_only) return std::move(result_);
    verify(result_.set, result_.plan);
    result_.hash = result_.set.hash();
    result_.collective_hash = hash_collectives(result_.set);
    return std::move(result_);
  }

  OutputFiles saved_files() const { return state_output(job_).files; }

 private:
  ProgramId add(Task task) {
    std::string text(name(task));
    if (const int short_one = shape_ % spec_.cut.token_shapes())
      text += fmt::format(".{}_eighths", spec_.cut.short_eighths[static_cast<size_t>(short_one) - 1]);
    if (shape_ >= spec_.cut.token_shapes()) text += fmt::format(".{}_patches", spec_.cut.patches_of(shape_));
    if (swapped_) text += ".swapped";
    return result_.programs[{task, swapped_, shape_}] = add_program(result_.set, std::move(text));
  }

  bool speculates() const {
    for (int g = 0; g < spec_.table.group_count(); g++)
      if (storage_.speculates(g)) return true;
    return false;
  }

  // Returns whether there is anything to update in the next step.
  bool defers() const {
    bool any = false;
    for (int g = 0; g < spec_.table.group_count(); g++)
      any = any || (layout_.segment(g, SegmentKind::Trained).elements > 0 && !job_.updates_early(g));
    return spec_.strategy.defer_updates && any;
  }

  // Calls the body once for each shape of a pass; a job of steps alone has only the whole shape, which takes the most.
  template <class Body>
  void in_all_shapes(const Body& body) {
    for (shape_ = 0; shape_ < (spec_.step_only ? 1 : spec_.cut.shapes()); shape_++) body();
    shape_ = 0;
  }

  void lower_evaluations() {
    in_all_shapes([&] { lower_evaluation(job_, add(Task::Evaluate), spec_.cut, shape_); });
  }

  void lower_scorings() {
    const bool is_asked = spec_.objective.has_reference() || spec_.objective.has_teacher();
    if (!is_asked || spec_.objective.reference == Reference::Model) return;
    in_all_shapes([&] { lower_scoring(job_, add(Task::Score), spec_.cut, shape_); });
  }

  // Calls the body once for each buffer in which state may be.
  template <class Body>
  void for_both_buffers(const Body& body) {
    body();
    if (!speculates() || spec_.step_only) return;
    swapped_ = true;
    storage_.swap_buffers();
    body();
    storage_.swap_buffers();
    swapped_ = false;
  }

  Operand make_rope_table(std::string name, const RopeParameters& rope) {
    const int64_t positions = std::max(spec_.cut.sequence_length, spec_.cache_positions);
    int64_t dim = spec_.model.text_layer().heads.dim;
    for (size_t i = spec_.model.tower_layers(); i < spec_.model.layers.size(); i++)
      check(spec_.model.layers[i].heads.dim == dim, "heads of {} and of {}: one rotary table has one width", dim,
            spec_.model.layers[i].heads.dim);
    if (rope.dim > 0) dim = rope.dim;
    return new_tensor(result_.set, std::move(name), DType::F32, {positions, dim}, Role::Weight, Space::Device,
                      Life::Persistent);
  }

  std::optional<Operand> make_local_rope_table() {
    if (std::ranges::none_of(spec_.model.layers, &LayerSpec::local_rope)) return std::nullopt;
    return make_rope_table("local_rope_table", spec_.model.local_rope);
  }

  std::optional<Operand> make_query_rope_table() {
    if (spec_.model.rope.query_growth == 0) return std::nullopt;
    return make_rope_table("query_rope_table", spec_.model.rope);
  }

  // Returns the table of the rows and columns of patches, which are fewer than the patches of a block; none where the
  // places of queries are those of patches too.
  std::optional<Operand> make_tower_rope_table() {
    if (spec_.cut.patches.empty() || spec_.given_embeddings) return std::nullopt;
    const LayerSpec& projector = spec_.model.projector();
    if (!projector.query_places.empty()) return std::nullopt;
    const int64_t columns =
        projector.queries > 0 ? projector.heads.query_columns() / 2 : spec_.model.layers[0].heads.dim;
    const int64_t longest = spec_.model.tower.longest_side, patches = spec_.cut.patches[0];
    return new_tensor(result_.set, "tower_rope_table", DType::F32,
                      {longest > 0 ? std::min(longest, patches) : patches, columns}, Role::Weight, Space::Device,
                      Life::Persistent);
  }

  bool trains() const { return spec_.purpose == Purpose::Train; }

  void lower_step() {
    const StepBuffers step = make_step_buffers(job_, spec_.cut);
    const int64_t passes = spec_.cut.passes;
    std::map<Task, std::vector<PassPosition>> positions;
    for (int64_t pass = 0; pass < passes; pass++) {
      const PassPosition position = position_of(pass, passes);
      if (spec_.strategy.layer_major) {
        positions[Task::Pass].push_back(position);
      } else {
        result_.passes.push_back(task_of(position));
        positions[result_.passes.back()] = {position};
      }
    }
    if (spec_.strategy.layer_major) result_.passes = {Task::Pass};
    for (const auto& [task, of_program] : positions) {
      auto lower = [&, task = task, &of_program = of_program] {
        in_all_shapes([&] {
          lower_passes(job_, add(task), spec_.cut, shape_, of_program, step, false);
          if (defers() && (task == Task::Pass || task == Task::First))
            lower_passes(job_, add(pending(task)), spec_.cut, shape_, of_program, step, true);
        });
      };
      if (task == Task::Pass || task == Task::Last)
        for_both_buffers(lower);
      else
        lower();
    }
    if (speculates()) for_both_buffers([&] { lower_reapply(job_, add(Task::Reapply), step); });
    if (defers()) lower_flush(job_, add(Task::Flush), step);
    result_.update = lower_update(job_, add(Task::Update), step);
    step_ = step;
  }

  void lower_around_steps() {
    if (spec_.evaluate || spec_.objective.scores_others()) lower_evaluations();
    lower_scorings();

    if (spec_.numerics.optimizer == Optimizer::ScheduleFreeAdamW)
      for_both_buffers([&] {
        lower_to_average(job_, add(Task::ToAverage));
        lower_from_average(job_, add(Task::FromAverage));
      });
    result_.saved = saved_files();
    for_both_buffers([&] {
      Emitter save(result_.set, add(Task::Save), facts_);
      lower_writes(save, state_output(job_));
    });
    const SavedState saved = spec_.saved ? *spec_.saved : assumed_saved_state(job_);
    lower_restore(job_, add(Task::Restore), saved);
    result_.restored_files = saved.files;
    const bool adapters = std::ranges::any_of(spec_.table.params, &ParamSpec::adapter);
    for_both_buffers([&] { export_as(adapters ? adapter_output(job_, spec_.sources) : whole_model()); });
  }

  Output whole_model() const { return model_output(job_, spec_.sources, spec_.export_dtype, kShardBytes); }

  void export_as(Output output) {
    result_.exported = output.files;
    lower_export(job_, add(Task::Export), spec_.sources, std::move(output));
  }

  void lower_generating() {
    const std::vector<Operand> caches = make_caches(job_, spec_.cache_positions + kPrefillTokens - 1);
    std::optional<Operand> tower_rows;
    if (const int64_t patches = spec_.cut.patches_of(0)) tower_rows = lower_looking(job_, add(Task::Look), patches);
    lower_generation(job_, add(Task::Prefill), kPrefillTokens, caches, tower_rows);
    lower_generation(job_, add(Task::Decode), 1, caches);
    result_.passes = {Task::Decode};
  }

  void link() {
    static const std::vector<Task> with_pending{Task::PassDeferred, Task::FirstDeferred, Task::Flush};
    for (const auto& [key, program] : result_.programs) {
      const Task task = key.task;
      const bool updated = task == Task::Update || task == Task::Reapply;
      for (const Task next : updated&& result_.has(Task::Flush) ? with_pending : successors().at(task))
        link(program, bridge(task, next));
      if (task == Task::Update) link(program, Task::Reapply);
    }
  }

  // Returns the task that must come before `next` can: of two of which one uses the average, the exchange of weights.
  Task bridge(Task task, Task next) const {
    if (!result_.has(Task::ToAverage) || uses_average(task) == uses_average(next)) return next;
    return uses_average(next) ? Task::ToAverage : Task::FromAverage;
  }

  void link(ProgramId program, Task next) {
    for (const auto& [key, follower] : result_.programs)
      if (std::vector<ProgramId>& all = result_.set.programs[program].next;
          key.task == next && std::ranges::find(all, follower) == all.end())
        all.push_back(follower);
  }

  void note_owned() {
    for (size_t i = 0; i < spec_.table.params.size(); i++) {
      const ParamSpec& param = spec_.table.params[i];
      const SegmentKind kind = layout_.kind(static_cast<ParamId>(i));
      const Span place = layout_.span(static_cast<ParamId>(i)),
                 part = layout_.part(layout_.segment(param.group, kind).elements), mine = intersection(place, part);
      Compiled::Owned owned;
      if (mine.count() > 0) {
        owned.span = {mine.begin - place.begin, mine.end - place.begin};
        owned.weight = slice(storage_.values(param.group, kind), mine);
        if (param.trainable && !step_.gradients.empty() && !result_.update.in_backward)
          owned.gradient = slice(step_.gradients[static_cast<size_t>(param.group)], part.begin, mine);
        if (kind == SegmentKind::Quantized) owned.scales = scales_of(static_cast<ParamId>(i), mine);
      }
      result_.owned.push_back(owned);
    }
  }

  std::vector<Operand> scales_of(ParamId id, const Span& mine) const {
    const int group = spec_.table[id].group;
    std::vector<Operand> scales;
    for (const Array& array : storage_.weights(group, SegmentKind::Quantized))
      if (array.sharded.values.dtype == DType::F32) scales.push_back(slice(array.sharded, mine));
    const Span table = storage_.table_span(id);
    if (table.count() > 0) scales.push_back(elements(storage_.table(group), table.begin, table.end));
    return scales;
  }

  const JobSpec& spec_;
  const OpFacts& facts_;
  Compiled result_;
  Layout layout_;
  Storage storage_;
  bool swapped_ = false;
  int shape_ = 0;  // of the passes that are being lowered
  JobContext job_;
  StepBuffers step_;
};

}  // namespace

std::string_view name(Task task) {
  constexpr std::array<std::string_view, 21> kNames{
      "load",          "restore", "pass",   "first",   "middle",   "last",  "pass_pending",
      "first_pending", "update",  "flush",  "reapply", "evaluate", "score", "to_average",
      "from_average",  "save",    "export", "prefill", "decode",   "look",  "embed"};
  return kNames[static_cast<size_t>(task)];
}

std::vector<Form> forms_of(const JobSpec& spec) {
  std::vector<Form> forms;
  for (size_t i = 0; i < spec.table.params.size(); i++) {
    const ParamSpec& param = spec.table.params[i];
    // A job of steps alone has no sources.
    const bool in_file = !spec.sources.params.empty() && std::holds_alternative<TensorPlace>(spec.sources.params[i]);
    const bool left_out = in_file && spec.sources.format != BaseFormat::Plain;  // by the files' quantisation
    const bool quantizes = spec.numerics.quantized_base() && param.linear && !param.trainable && !param.tower;
    const bool elsewhere = spec.purpose == Purpose::Embed ? !param.tower : spec.given_embeddings && param.tower;
    forms.push_back(elsewhere                                                     ? Form::InFile
                    : quantizes && !left_out                                      ? Form::Quantized
                    : spec.purpose == Purpose::Merge && in_file && !param.adapter ? Form::InFile
                                                                                  : Form::Plain);
  }
  return forms;
}

Compiled compile(const JobSpec& spec, const OpFacts& facts) { return Compiler(spec, facts).run(); }

uint64_t saved_bytes(const JobSpec& spec, const OpFacts& facts) {
  JobSpec of_rank = spec;
  uint64_t bytes = 0;
  for (of_rank.rank = 0; of_rank.rank < spec.cut.ranks; of_rank.rank++)
    bytes += Compiler(of_rank, facts).saved_files().disk_bytes();
  return bytes;
}

}  // namespace snug
