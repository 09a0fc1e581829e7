#include "plan/lowering/export.h"

#include <algorithm>
#include <map>

#include "plan/lowering/placement.h"

namespace snug {
namespace {

// Returns a transfer that stands for all elements of a tensor, wherever they are: Export finds them.
Transfer all_of(const Shape& shape, ParamId param) {
  Transfer transfer;
  transfer.param = param;
  transfer.stored.values.shape = {shape.count()};
  return transfer;
}

// Holds what an adapter adds to one weight.
struct Adapter {
  ParamId a = kNoParam, b = kNoParam;
  float scale = 0;
  ParamId change = kNoParam;  // of its rows' norms, where these are trained
};

// Returns the adapters by the weight that they adapt.
std::map<ParamId, Adapter> find_adapters(const ParamTable& table) {
  std::map<ParamId, Adapter> adapters;
  for (const LayerParams& layer : table.layers)
    for (const Linear* linear : layer.linears()) {
      int64_t row = 0;
      for (ParamId weight = linear->weight; weight < linear->weight + linear->count; weight++) {
        for (size_t i = 0; i < linear->lora.parts.size(); i++)
          if (linear->lora.parts[i].row_begin == row)
            adapters[weight] = {linear->lora.a + static_cast<ParamId>(i), linear->lora.parts[i].b,
                                linear->lora.parts[i].scale,
                                linear->lora.scales_rows() ? linear->lora.change + static_cast<ParamId>(i) : kNoParam};
        row += table[weight].shape.rows();
      }
    }
  return adapters;
}

// Returns -B as it began by the B that is trained, where adapters begin with parts of the base.
std::map<ParamId, ParamId> initial_halves_b(const ParamTable& table) {
  std::map<ParamId, ParamId> initial;
  for (const LayerParams& layer : table.layers)
    for (const Linear* linear : layer.linears())
      for (size_t i = 0; linear->lora.initial_b != kNoParam && i < linear->lora.parts.size(); i++)
        initial[linear->lora.parts[i].b] = linear->lora.initial_b + static_cast<ParamId>(i);
  return initial;
}

// Returns what norms of rows began with, by what is trained of them.
std::map<ParamId, ParamId> initial_magnitudes(const ParamTable& table) {
  std::map<ParamId, ParamId> initial;
  for (const LayerParams& layer : table.layers)
    for (const Linear* linear : layer.linears())
      for (size_t i = 0; linear->lora.scales_rows() && i < linear->lora.parts.size(); i++)
        initial[linear->lora.change + static_cast<ParamId>(i)] =
            linear->lora.initial_magnitude + static_cast<ParamId>(i);
  return initial;
}

// Holds tensors to be written, each with the transfers that fill it and the element with which each of these begins.
struct FileTensors {
  std::vector<SafetensorsTensor> tensors;
  std::vector<std::vector<std::pair<int64_t, Transfer>>> transfers;

  // `shape` is that of the tensor. Rows of one are added one after the other; it has the dtype of the first.
  void add(const StoredRows& stored, const Shape& shape, DType dtype, Transfer transfer) {
    const int64_t row = stored.rows > 0 ? shape.count() / shape[0] : 0;
    if (stored.first == 0) {
      tensors.push_back({stored.tensor, dtype, shape});
      transfers.emplace_back();
    }
    check(tensors.back().name == stored.tensor, "{}: its rows are not added one after the other", stored.tensor);
    transfers.back().push_back({stored.first * row, std::move(transfer)});
  }
};

class Export {
 public:
  Export(const JobContext& job, ProgramId program, const WeightSources& sources)
      : job_(job), sources_(sources), e_(job.set, program, job.facts) {}

  void emit(Output output) {
    first_source_ = std::ssize(output.files.names);
    if (job_.topology().rank == 0)
      return lower_writes(e_, std::move(output), [this](const Transfer& t, int64_t begin, int64_t end) {
        if (t.source) return Stored{from_file("values", *t.source, begin, {end - begin}, t.source->dtype)};
        Stored some = stored(t.param);
        some.values = elements(some.values, begin, end);
        if (some.low) some.low = elements(*some.low, begin, end);
        return some;
      });
    // Ranks that do not write take part in the gathering.
    std::ranges::sort(output.transfers, {}, [](const Transfer& t) { return std::pair(t.place.file, t.place.offset); });
    for (const Transfer& transfer : output.transfers) {
      if (transfer.source) continue;
      if (job_.layout().holds(transfer.param)) whole(transfer.param);
      if (merged(transfer.param)) whole(adapters_.at(transfer.param).a);
    }
    retire_later(e_.program(), 1);  // nothing here reads what is gathered: two groups at a time, as on the writing rank
  }

 private:
  struct Whole {
    std::vector<Operand> arrays;
    std::optional<Operand> low;
  };

  // Returns whether a weight is merged with an adapter. An adapter's own parameters are written as they are.
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
    // Files go through the groups in order, once for each width of elements, so two groups are held at a time, whatever
    // is not resident.
    std::erase_if(whole_, [&](const auto& entry) { return std::abs(entry.first.first - group) > 1; });
    return whole_.at({group, kind});
  }

  Stored stored(ParamId id) {
    if (last_ == id) return last_stored_;
    if (const auto initial = initial_b_.find(id); initial != initial_b_.end()) {
      last_ = id;
      return last_stored_ = {flat(joined_halves(id, initial->second))};
    }
    if (magnitudes_.contains(id)) {
      last_ = id;
      return last_stored_ = {row_norms(id)};
    }
    const bool quantized = job_.layout().kind(id) == SegmentKind::Quantized, in_segment = job_.layout().holds(id);
    if (in_segment && !quantized && !merged(id)) return stored_of(id);
    const std::string before = e_.scope();
    e_.scope(job_.table[id].name);
    Operand values;
    if (in_segment)
      values = quantized ? dequantized(id) : stored_of(id).values;
    else
      values = from_file("sum", std::get<TensorPlace>(sources_.params[static_cast<size_t>(id)]), 0,
                         job_.table[id].shape, DType::F32);
    if (merged(id)) values = with_adapter(id, in_segment ? in_fp32("sum", id, {values}) : values);
    e_.scope(before);
    last_ = id;
    return last_stored_ = {flat(values)};
  }

  // Returns B, in fp32, and beside it -B as it began.
  Operand joined_halves(ParamId b, ParamId initial) {
    const std::string before = e_.scope();
    e_.scope(job_.table[b].name);
    const Shape& shape = job_.table[b].shape;
    const int64_t rank = shape.cols();
    const Operand both = e_.tensor("both", DType::F32, {shape.rows(), 2 * rank}, Role::Staging);
    const Operand own = in_fp32("b", b, stored_of(b)),
                  began = from_file("began", std::get<TensorPlace>(sources_.params[static_cast<size_t>(initial)]), 0,
                                    shape, DType::F32);
    e_.op("own", Copy{}, {read(own), write(columns(both, 0, rank))});
    e_.op("began", Copy{}, {read(began), write(columns(both, rank, 2 * rank))});
    e_.scope(before);
    return both;
  }

  // Returns the norms of an adapter's rows, in fp32.
  Operand row_norms(ParamId change) {
    const std::string before = e_.scope();
    e_.scope(job_.table[change].name);
    const Operand sum = flat(in_fp32("norms", change, stored_of(change)));
    e_.op("add", Accumulate{}, {read(job_.storage.constant(magnitudes_.at(change))), update(sum)});
    e_.scope(before);
    return sum;
  }

  Stored stored_of(ParamId id) {
    const Whole& all = whole(id);
    Stored stored{flat(job_.storage.view(all.arrays[0], id))};
    if (all.low) stored.low = flat(job_.storage.view(*all.low, id));
    return stored;
  }

  // Reads numbers of the model's files from the element `begin` of a tensor on.
  Operand from_file(std::string_view what, TensorPlace place, int64_t begin, const Shape& shape, DType dtype) {
    const Operand values = e_.tensor(what, dtype, shape, Role::Staging);
    place.file += first_source_;
    place.offset += static_cast<uint64_t>(begin) * element_bytes(place.dtype);
    std::vector<uint64_t> file_bytes(static_cast<size_t>(first_source_));
    file_bytes.insert(file_bytes.end(), sources_.file_bytes.begin(), sources_.file_bytes.end());
    lower_reads(e_, {stored_as(e_, {flat(values)}, place)}, file_bytes, range_bytes(file_bytes, 1) + kDirectIo);
    return values;
  }

  Operand dequantized(ParamId id) {
    const Operand values = e_.tensor("w", job_.numerics.compute, job_.table[id].shape, Role::Staging);
    dequantize(e_, job_, whole(id).arrays, id, values);
    return values;
  }

  // Adds the adapter to `sum`, which is the weight in fp32, a matrix of this program's own.
  Operand with_adapter(ParamId id, const Operand& sum) {
    const Adapter& adapter = adapters_.at(id);
    e_.op("add", Gemm{.alpha = adapter.scale, .addend = true},
          {read(in_fp32("b", adapter.b, stored_of(adapter.b))), read(in_fp32("a", adapter.a, stored_of(adapter.a))),
           read(sum), write(sum)});
    if (adapter.change != kNoParam) e_.op("set_norms", SetRowNorms{}, {update(sum), read(row_norms(adapter.change))});
    return sum;
  }

  // Returns a parameter in fp32; a split one with all its bits.
  Operand in_fp32(std::string_view what, ParamId id, const Stored& stored) {
    const Operand wide = e_.tensor(what, DType::F32, job_.table[id].shape, Role::Staging);
    if (stored.low)
      e_.op(what, JoinMaster{}, {read(stored.values), read(*stored.low), write(flat(wide))});
    else
      e_.op(what, Cast{}, {read(flat(stored.values)), write(flat(wide))});
    return wide;
  }

  const JobContext& job_;
  const WeightSources& sources_;
  Emitter e_;
  int64_t first_source_ = 0;  // the first of the program's files that is read
  std::map<ParamId, Adapter> adapters_ = find_adapters(job_.table);
  std::map<ParamId, ParamId> initial_b_ = initial_halves_b(job_.table);
  std::map<ParamId, ParamId> magnitudes_ = initial_magnitudes(job_.table);
  std::map<std::pair<int, SegmentKind>, Whole> whole_;
  ParamId last_ = kNoParam;  // the parameter whose values were computed last
  Stored last_stored_;
};

}  // namespace

Output adapter_output(const JobContext& job, const WeightSources& sources) {
  const ParamTable& table = job.table;
  const std::map<ParamId, ParamId> initial = initial_halves_b(table);
  FileTensors files;
  for (size_t i = 0; i < table.params.size(); i++) {
    const auto id = static_cast<ParamId>(i);
    const ParamSpec& param = table[id];
    if (!param.trainable && !param.saved) continue;
    // A lies above A as it began, and B beside -B as it began.
    const bool is_b = initial.contains(id), is_a = !is_b && i + 1 < table.params.size() && table[id + 1].taken_off;
    Shape shape = param.shape;
    if (is_b) shape.dims[1] *= 2;
    Shape whole = is_b ? shape : shape_in_adapter(param);
    if (is_a) whole.dims[0] *= 2;
    for (const std::string& name : names_in_adapter(table, id)) {
      files.add({name, 0, whole[0]}, whole, DType::F32, all_of(shape, id));
      if (!is_a) continue;
      Transfer began = all_of(shape, id + 1);
      began.source = std::get<TensorPlace>(sources.params[i + 1]);
      files.add({name, shape[0], whole[0]}, whole, DType::F32, began);
    }
  }
  Output output;
  output.files.names = {"adapter_model.safetensors"};
  output.files.layouts = {layout_safetensors(files.tensors)};
  for (size_t i = 0; i < files.tensors.size(); i++)
    for (auto& [first, transfer] : files.transfers[i]) {
      transfer.place = {0, output.files.layouts[0].offset[i] + static_cast<uint64_t>(first) * sizeof(float),
                        DType::F32};
      output.transfers.push_back(std::move(transfer));
    }
  return output;
}

Output model_output(const JobContext& job, const WeightSources& sources, std::optional<DType> dtype,
                    uint64_t max_bytes) {
  FileTensors files;
  const std::map<ParamId, Adapter> adapters = find_adapters(job.table);
  // What a job does not train is copied as its file has it.
  const bool trains = std::ranges::any_of(job.table.params, &ParamSpec::trainable) && adapters.empty();
  for (size_t i = 0; i < job.table.params.size(); i++) {
    const ParamSpec& param = job.table.params[i];
    if (param.adapter) continue;
    const auto id = static_cast<ParamId>(i);
    Transfer transfer = all_of(param.shape, id);
    const bool kept = trains && !param.trainable && std::holds_alternative<TensorPlace>(sources.params[i]);
    if (kept || (!job.layout().holds(id) && !adapters.contains(id)))
      transfer.source = std::get<TensorPlace>(sources.params[i]);
    files.add(param.stored, stored_shape(param), dtype.value_or(sources.dtypes[i].value_or(job.numerics.compute)),
              transfer);
  }
  for (const WeightSources::Extra& extra : sources.extras) {
    Transfer transfer = all_of(extra.shape, extra.same_as);
    if (extra.same_as == kNoParam)
      transfer.source = extra.place;
    else if (!job.layout().holds(extra.same_as))
      transfer.source = std::get<TensorPlace>(sources.params[static_cast<size_t>(extra.same_as)]);
    const int64_t rows = extra.shape.rank > 0 ? extra.shape[0] : 0;
    files.add({extra.name, 0, rows}, extra.shape,
              extra.same_as == kNoParam ? extra.place.dtype : dtype.value_or(extra.place.dtype), transfer);
  }
  ShardedLayout sharded = shard_safetensors(files.tensors, max_bytes);
  Output output;
  output.files.index_json = std::move(sharded.index_json);
  for (auto& shard : sharded.shards) {
    const auto file = static_cast<int64_t>(output.files.names.size());
    for (size_t i = 0; i < shard.tensors.size(); i++) {
      const auto& [name, as, shape] = files.tensors[shard.tensors[i]];
      bool halved = false;
      for (auto& [first, transfer] : files.transfers[shard.tensors[i]]) {
        transfer.place = {file, shard.layout.offset[i] + static_cast<uint64_t>(first) * element_bytes(as), as};
        halved = halved || (as == DType::F16 && !(transfer.source && transfer.source->dtype == as));
        output.transfers.push_back(std::move(transfer));
      }
      if (halved) output.files.halves.push_back(name);
    }
    output.files.names.push_back(std::move(shard.file_name));
    output.files.layouts.push_back(std::move(shard.layout));
  }
  return output;
}

void lower_export(const JobContext& job, ProgramId program, const WeightSources& sources, Output output) {
  Export(job, program, sources).emit(std::move(output));
}

}  // namespace snug
