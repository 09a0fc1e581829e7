#include "plan/export.h"

#include <algorithm>
#include <map>

#include "plan/placement.h"

namespace snug {
namespace {

// Stands for all elements of a parameter, wherever they are: Export finds them.
Transfer whole_param(const JobContext& job, size_t i, int64_t file, uint64_t offset, DType dtype) {
  Operand values;
  values.shape = {job.table.params[i].shape.count()};
  return {{values}, {file, offset, dtype}, static_cast<ParamId>(i)};
}

// What an adapter adds to one weight.
struct Adapter {
  ParamId a = kNoParam, b = kNoParam;
  float scale = 0;
};

// By the weight that is adapted.
std::map<ParamId, Adapter> find_adapters(const ParamTable& table) {
  std::map<ParamId, Adapter> adapters;
  for (const BlockParams& block : table.blocks)
    for (const Linear* linear : {&block.qkv, &block.o, &block.gate_up, &block.down}) {
      int64_t row = 0;
      for (ParamId weight = linear->weight; weight < linear->weight + linear->count; weight++) {
        for (size_t i = 0; i < linear->lora.parts.size(); i++)
          if (linear->lora.parts[i].row_begin == row)
            adapters[weight] = {linear->lora.a + static_cast<ParamId>(i), linear->lora.parts[i].b,
                                linear->lora.parts[i].scale};
        row += table[weight].shape.rows();
      }
    }
  return adapters;
}

class Export {
 public:
  Export(const JobContext& job, ProgramId program) : job_(job), e_(job.set, program, job.facts) {}

  void emit(Output output) {
    if (job_.topology().rank == 0)
      return lower_writes(e_, std::move(output), [this](const Transfer& t) { return stored(t.param); });
    // The others take part in what is gathered.
    std::ranges::sort(output.transfers, {}, [](const Transfer& t) { return std::pair(t.place.file, t.place.offset); });
    for (const Transfer& transfer : output.transfers) {
      whole(transfer.param);
      if (merged(transfer.param)) whole(adapters_.at(transfer.param).a);
    }
    retire_later(e_.program(), 1);  // nobody here reads it: two groups at a time, as where they are written
  }

 private:
  struct Whole {
    std::vector<Operand> arrays;
    std::optional<Operand> low;
  };

  // An adapter's own parameters are written as they are.
  bool merged(ParamId id) const { return adapters_.contains(id); }

  const Whole& whole(ParamId id) {
    const int group = job_.table[id].group;
    const SegmentKind kind = job_.layout().kind(id);
    const auto [found, fresh] = whole_.try_emplace({group, kind});
    if (!fresh) return found->second;
    const std::string before = e_.scope();
    e_.scope(fmt::format("group.{}", group));
    found->second.arrays = fetch_weights(e_, job_, group, kind);
    if (job_.storage.split(id))
      found->second.low = fetch_whole(e_, "low", job_.storage.low(group), job_.layout().segment(group, kind).elements);
    e_.scope(before);
    // Files go through the groups in order; only two are held at a time, whatever is not resident.
    std::erase_if(whole_, [&](const auto& held) { return held.first.first + 1 < group; });
    return whole_.at({group, kind});
  }

  Stored stored(ParamId id) {
    if (last_ == id) return last_stored_;
    const bool coded = job_.layout().kind(id) == SegmentKind::Coded;
    if (!coded && !merged(id)) return as_held(id);
    const std::string before = e_.scope();
    e_.scope(job_.table[id].name);
    Operand values = coded ? dequantized(id) : as_held(id).values;
    if (merged(id)) values = with_adapter(id, values);
    e_.scope(before);
    last_ = id;
    return last_stored_ = {flat(values)};
  }

  Stored as_held(ParamId id) {
    const Whole& all = whole(id);
    Stored stored{flat(job_.storage.view(all.arrays[0], id))};
    if (all.low) stored.low = flat(job_.storage.view(*all.low, id));
    return stored;
  }

  Operand dequantized(ParamId id) {
    const Operand values = e_.tensor("w", job_.numerics.compute, job_.table[id].shape, Role::Staging);
    dequantize(e_, job_, whole(id).arrays, id, values);
    return values;
  }

  Operand with_adapter(ParamId id, Operand values) {
    const Adapter& adapter = adapters_.at(id);
    values.shape = job_.table[id].shape;
    values.row_stride = values.shape.cols();
    const Operand sum = in_fp32("sum", id, {values});
    e_.op("add", Gemm{.alpha = adapter.scale, .addend = true},
          {read(in_fp32("b", adapter.b, as_held(adapter.b))), read(in_fp32("a", adapter.a, as_held(adapter.a))),
           read(sum), write(sum)});
    return sum;
  }

  // A split adapter counts with all its bits.
  Operand in_fp32(std::string_view what, ParamId id, const Stored& stored) {
    const Operand wide = e_.tensor(what, DType::F32, job_.table[id].shape, Role::Staging);
    if (stored.low)
      e_.op(what, JoinMaster{}, {read(stored.values), read(*stored.low), write(flat(wide))});
    else
      e_.op(what, Cast{}, {read(flat(stored.values)), write(flat(wide))});
    return wide;
  }

  const JobContext& job_;
  Emitter e_;
  std::map<ParamId, Adapter> adapters_ = find_adapters(job_.table);
  std::map<std::pair<int, SegmentKind>, Whole> whole_;
  ParamId last_ = kNoParam;  // whose values were computed last
  Stored last_stored_;
};

}  // namespace

Output adapter_output(const JobContext& job) {
  std::vector<SafetensorsTensor> tensors;
  std::vector<Transfer> transfers;
  for (size_t i = 0; i < job.table.params.size(); i++) {
    if (!job.table.params[i].adapter) continue;
    tensors.push_back({job.table.params[i].name, DType::F32, job.table.params[i].shape});
    transfers.push_back(whole_param(job, i, 0, 0, DType::F32));
  }
  return one_file("adapter_model.safetensors", tensors, std::move(transfers));
}

Output model_output(const JobContext& job, DType dtype, uint64_t max_bytes) {
  std::vector<SafetensorsTensor> tensors;
  std::vector<size_t> params;
  for (size_t i = 0; i < job.table.params.size(); i++) {
    if (job.table.params[i].adapter) continue;
    tensors.push_back({job.table.params[i].name, dtype, job.table.params[i].shape});
    params.push_back(i);
  }
  ShardedLayout sharded = shard_safetensors(tensors, max_bytes);
  Output output;
  output.files.index_json = std::move(sharded.index_json);
  for (auto& shard : sharded.shards) {
    const auto file = static_cast<int64_t>(output.files.names.size());
    for (size_t i = 0; i < shard.tensors.size(); i++)
      output.transfers.push_back(whole_param(job, params[shard.tensors[i]], file, shard.layout.offset[i], dtype));
    output.files.names.push_back(std::move(shard.file_name));
    output.files.layouts.push_back(std::move(shard.layout));
  }
  return output;
}

void lower_export(const JobContext& job, ProgramId program, Output output) {
  Export(job, program).emit(std::move(output));
}

}  // namespace snug
