#include "plan/lowering/load.h"

#include <algorithm>
#include <map>

#include "base/rounding.h"
#include "model/rope.h"
#include "plan/lowering/placement.h"

namespace snug {
namespace {

constexpr int64_t kFillTile = 4 << 20;  // elements drawn or cleared at a time, where they do not stay on the device

// Returns the elements of a parameter that this rank owns, in its segment.
Span owned(const JobContext& job, ParamId id) {
  const int group = job.table[id].group;
  return intersection(job.layout().span(id),
                      job.layout().part(job.layout().segment(group, job.layout().kind(id)).elements));
}

// Calls `take` for each of the ranges in which elements [span) lie, with the place where it begins.
void for_pieces(const RangedSource& pieces, const Span& span,
                const std::function<void(const Span& part, const TensorPlace& place)>& take) {
  for (size_t i = 0; i < pieces.size(); i++) {
    const int64_t next = i + 1 < pieces.size() ? pieces[i + 1].first : span.end;
    const Span part = intersection(span, {pieces[i].first, next});
    if (part.count() <= 0) continue;
    TensorPlace place = pieces[i].place;
    place.offset += static_cast<uint64_t>(part.begin - pieces[i].first) * element_bytes(place.dtype);
    take(part, place);
  }
}

class Loader {
 public:
  Loader(const JobContext& job, ProgramId program, const std::vector<ParamSource>& sources,
         const std::vector<uint64_t>& file_bytes)
      : job_(job), e_(job.set, program, job.facts), sources_(sources), file_bytes_(file_bytes) {}

  void emit() {
    const auto fill = [&](std::string_view site, const RopeParameters& rope, const Operand& table, bool queries) {
      e_.op(site, rope_table(rope, table.shape.cols(), table.shape.rows(), queries), {write(table)});
    };
    fill("rope_table", job_.model.rope, job_.rope_table, false);
    if (job_.local_rope_table) fill("local_rope_table", job_.model.local_rope, *job_.local_rope_table, false);
    const TowerSpec& tower = job_.model.tower;
    if (job_.tower_rope_table && !tower.rope_axes)
      fill("tower_rope_table", tower.rope, *job_.tower_rope_table, false);
    else if (job_.tower_rope_table)
      e_.op("tower_rope_table", rope_table(tower.rope, tower.rope_axes), {write(*job_.tower_rope_table)});
    if (job_.query_rope_table) fill("query_rope_table", job_.model.rope, *job_.query_rope_table, true);
    const uint64_t most = range_bytes(file_bytes_, job_.topology().ranks);
    std::vector<std::vector<ParamId>> by_group(static_cast<size_t>(job_.table.group_count()));
    for (size_t i = 0; i < job_.table.params.size(); i++)
      by_group[static_cast<size_t>(job_.table.params[i].group)].push_back(static_cast<ParamId>(i));
    for (int g = 0; g < job_.table.group_count(); g++) {
      e_.scope(fmt::format("group.{}.load", g));
      begin_table(g);
      for (const ParamId id : by_group[static_cast<size_t>(g)])
        if (job_.layout().kind(id) == SegmentKind::Quantized)
          quantized(id);
        else
          plain(id);
      e_.scope(fmt::format("group.{}.load", g));
      lower_reads(e_, reads_, file_bytes_, most);
      reads_.clear();
      if (twice_quantised()) quantize_scales(g);
      end_table(g);
      allgather_group(g);
      fill_constants(g);
    }
    let_staging_overlap(e_.program());
  }

 private:
  int64_t elements_of(int group, SegmentKind kind) const { return job_.layout().segment(group, kind).elements; }

  // ---- Parameters that are stored as they are ----

  void plain(ParamId id) {
    const Span span = owned(job_, id);
    if (span.count() == 0) return;
    const ParamSpec& param = job_.table[id];
    const int64_t start = job_.layout().span(id).begin;
    const auto stored = [&](const Span& elements) {
      const Span at{start + elements.begin, start + elements.end};
      Stored place{slice(job_.storage.values(param.group, job_.layout().kind(id)), at)};
      if (job_.storage.split(id)) place.low = slice(job_.storage.low(param.group), at);
      return place;
    };
    const Span mine{span.begin - start, span.end - start};
    if (const auto* fill = std::get_if<RandomFill>(&source(id))) {
      e_.scope(param.name);
      return random(stored(mine), *fill, static_cast<uint64_t>(mine.begin));
    }
    const auto* const pieces = std::get_if<RangedSource>(&source(id));
    for_pieces(
        pieces ? *pieces : RangedSource{{0, std::get<TensorPlace>(source(id))}}, mine,
        [&](const Span& part, const TensorPlace& place) { reads_.push_back(stored_as(e_, stored(part), place)); });
  }

  const ParamSource& source(ParamId id) const { return sources_[static_cast<size_t>(id)]; }

  // Draws the first values of elements that no file holds. Split parameters are drawn in fp32, tile by tile.
  void random(const Stored& stored, RandomFill fill, uint64_t first) {
    const int64_t count = stored.values.shape.count();
    const int64_t tile = on_device(e_.set(), stored.values) && !stored.low ? count : kFillTile;
    for (int64_t begin = 0; begin < count; begin += tile) {
      const int64_t end = std::min(begin + tile, count);
      const Operand target = elements(stored.values, begin, end), values = allocate(e_, "values", target);
      fill.first = first + static_cast<uint64_t>(begin);
      if (stored.low) {
        const Operand low_target = elements(*stored.low, begin, end), low = allocate(e_, "low", low_target);
        const Operand drawn = e_.tensor("drawn", DType::F32, {end - begin}, Role::Staging);
        e_.op("random", fill, {write(drawn)});
        e_.op("split", SplitMaster{}, {read(drawn), write(values), write(low)});
        store(e_, "low", low, low_target);
      } else {
        e_.op("random", fill, {write(values)});
      }
      store(e_, "values", values, target);
    }
  }

  // ---- Parameters that are quantised ----

  BaseFormat format() const { return job_.numerics.base_format; }
  bool by_rows() const { return format() != BaseFormat::Nf4; }
  bool twice_quantised() const { return format() == BaseFormat::Nf4 && !job_.numerics.plain_scales; }

  const ShardedArray& array(ParamId id, size_t i) const {
    return job_.storage.weights(job_.table[id].group, SegmentKind::Quantized)[i].sharded;
  }
  // Returns elements of a parameter in an array of its segment.
  Operand stored(ParamId id, size_t i, const Span& span) const {
    const int64_t start = job_.layout().span(id).begin;
    return slice(array(id, i), {start + span.begin, start + span.end});
  }
  // Returns how many elements of a parameter have one scale, or one scale of scales.
  int64_t block(ParamId id) const { return by_rows() ? job_.table[id].shape.cols() : unit_of(SegmentKind::Quantized); }

  void quantized(ParamId id) {
    const Span in_segment = owned(job_, id);
    const int64_t start = job_.layout().span(id).begin, unit = block(id);
    if (const auto* place = std::get_if<QuantizedSource>(&source(id)); place && twice_quantised())
      e_.op("offset", RandomFill{.distribution = Distribution::Constant, .scale = place->offset},
            {write(table_slot(id))});
    if (in_segment.count() == 0) return;
    const Span mine{in_segment.begin - start, in_segment.end - start};
    if (const auto* place = std::get_if<QuantizedSource>(&source(id))) return read_codes(id, mine, *place);
    if (twice_quantised())
      scales_[id] = e_.tensor("scales", DType::F32, {ceil_div(mine.count(), kNf4Block)}, Role::Staging);
    // A row has one scale even if this rank owns only a part of it.
    const Span whole{mine.begin / unit * unit, std::min(ceil_div(mine.end, unit) * unit, job_.table[id].shape.count())};
    if (const auto* fill = std::get_if<RandomFill>(&source(id))) return draw(id, mine, whole, *fill);
    TensorPlace place = std::get<TensorPlace>(source(id));
    place.offset += static_cast<uint64_t>(whole.begin) * element_bytes(place.dtype);
    reads_.push_back({place, whole.count(), unit, [=, this](const Operand& piece, int64_t first) {
                        encode(id, mine, piece, whole.begin + first);
                      }});
  }

  // Draws the numbers that a model without quantized linears would have, and quantizes them.
  void draw(ParamId id, const Span& mine, const Span& whole, RandomFill fill) {
    const int64_t unit = block(id), tile = std::max<int64_t>(1, kFillTile / unit) * unit;
    e_.scope(job_.table[id].name);
    for (int64_t begin = whole.begin; begin < whole.end; begin += tile) {
      fill.first = static_cast<uint64_t>(begin);
      const Operand drawn = e_.tensor("drawn", job_.numerics.base, {std::min(tile, whole.end - begin)}, Role::Staging);
      e_.op("random", fill, {write(drawn)});
      encode(id, mine, read(drawn), begin);
    }
  }

  // Quantizes a piece of whole blocks, whose first element is element `first` of the parameter, and stores as much of
  // it as is `mine`.
  void encode(ParamId id, const Span& mine, const Operand& piece, int64_t first) {
    const int64_t cols = job_.table[id].shape.cols(), count = piece.shape.count();
    const Span all{first, first + count}, kept = intersection(all, mine);
    const int64_t per_code = array(id, 0).block;
    Operand x = read(piece);
    if (by_rows()) x.shape = {count / cols, cols}, x.row_stride = cols;
    const Operand codes_stored = stored(id, 0, kept);
    Operand codes = codes_stored;
    if (kept != all || !on_device(e_.set(), codes_stored))
      codes = e_.tensor("codes", codes_stored.dtype, {count / per_code}, Role::Staging);
    if (by_rows()) codes.shape = x.shape, codes.row_stride = cols;
    const Operand scales =
        by_rows() ? e_.tensor("scales", DType::F32, {count / cols}, Role::Staging) : allocate_scales(id, mine, kept);
    e_.op("quantize", Quantize{format()}, {x, write(codes), write(scales)});
    store(e_, "codes", elements(flat(codes), (kept.begin - first) / per_code, (kept.end - first) / per_code),
          codes_stored);
    if (by_rows()) {  // the rank that owns a row's beginning gives its scale
      const Span rows{ceil_div(kept.begin, cols), ceil_div(kept.end, cols)};
      if (rows.count() > 0)
        e_.op("scales", Copy{},
              {read(elements(scales, rows.begin - first / cols, rows.end - first / cols)),
               write(elements(table_slot(id), rows.begin, rows.end))});
    } else if (!twice_quantised()) {
      store(e_, "scales", scales, stored(id, 1, kept));
    }
  }

  Operand allocate_scales(ParamId id, const Span& mine, const Span& kept) {
    if (!twice_quantised()) return allocate(e_, "scales", stored(id, 1, kept));
    return elements(scales_.at(id), (kept.begin - mine.begin) / kNf4Block, ceil_div(kept.end - mine.begin, kNf4Block));
  }

  void read_codes(ParamId id, const Span& mine, const QuantizedSource& from) {
    auto read_array = [&](size_t i, TensorPlace place) {
      place.offset += static_cast<uint64_t>(mine.begin / array(id, i).block) * element_bytes(place.dtype);
      reads_.push_back(stored_as(e_, {stored(id, i, mine)}, place));
    };
    read_array(0, from.codes);
    if (!by_rows()) {
      read_array(1, from.scales);
      if (from.block_scales) read_array(2, *from.block_scales);
      return;
    }
    const int64_t cols = job_.table[id].shape.cols();
    const Span rows{ceil_div(mine.begin, cols), ceil_div(mine.end, cols)};
    TensorPlace place = from.scales;
    place.offset += static_cast<uint64_t>(rows.begin) * element_bytes(place.dtype);
    if (rows.count() > 0) reads_.push_back(stored_as(e_, {elements(table_slot(id), rows.begin, rows.end)}, place));
  }

  // Quantizes scales. Each rank sums its own units; the tree's sum of these is equal on all ranks, and each rank then
  // quantizes its own scales.
  void quantize_scales(int group) {
    const Layout::Segment& segment = job_.layout().segment(group, SegmentKind::Quantized);
    if (segment.runs.empty() || std::holds_alternative<QuantizedSource>(source(segment.runs[0].first))) return;
    const int64_t unit = unit_of(SegmentKind::Quantized), ranks = job_.topology().ranks,
                  units = segment.elements / unit;
    const Span part = job_.layout().part(segment.elements);
    const Operand sums = e_.tensor("sums", DType::F32, {units / ranks}, Role::Staging);
    e_.op("clear", Fill{}, {write(sums)});
    for (const auto& [id, scales] : scales_) {
      const int64_t count = scales.shape.count(), first = (owned(job_, id).begin - part.begin) / unit;
      e_.op("sums", TreeSum{count, kNf4ScaleBlock},
            {read(scales), write(elements(sums, first, first + ceil_div(count, kNf4ScaleBlock)))});
    }
    const Operand all = ranks == 1 ? sums : e_.tensor("all_sums", DType::F32, {units}, Role::Staging);
    if (ranks > 1) e_.op("gather", AllGather{Ranks::Parts}, {read(sums), write(all)}, Lane::Gather);
    for (const Layout::Run& run : segment.runs) {
      const int64_t first = run.span.begin / unit, count = ceil_div(run.span.count(), unit);
      const float share = 1.0f / static_cast<float>(run.span.count() / kNf4Block);
      e_.op("offset", TreeSum{count, 0, share},
            {read(elements(all, first, first + count)), write(table_slot(run.first))});
    }
    for (const auto& [id, scales] : scales_) {
      const Span in_segment = owned(job_, id);
      const Operand codes_stored = slice(array(id, 1), in_segment), blocks_stored = slice(array(id, 2), in_segment);
      const Operand codes = allocate(e_, "scale_codes", codes_stored),
                    blocks = allocate(e_, "block_scales", blocks_stored);
      e_.op("quantize_scales", QuantizeScales{}, {read(scales), read(table_slot(id)), write(codes), write(blocks)});
      store(e_, "scale_codes", codes, codes_stored);
      store(e_, "block_scales", blocks, blocks_stored);
    }
    scales_.clear();
  }

  // ---- The table of a group: every rank has all of it ----

  Operand table_slot(ParamId id) const {
    const Span span = job_.storage.table_span(id);
    return elements(table_, span.begin, span.end);
  }

  // Returns whether ranks sum their tables: one rank finds a row's scale, and the others have zero there.
  bool table_is_summed() const { return by_rows() && job_.topology().ranks > 1; }

  void begin_table(int group) {
    table_ = job_.storage.table(group);
    if (table_.shape.rank == 0 || !table_is_summed()) return;
    table_ = e_.tensor("table", DType::F32, table_.shape, Role::Staging);
    e_.op("clear", Fill{}, {write(table_)});
  }

  void end_table(int group) {
    if (table_.shape.rank == 0 || !table_is_summed()) return;
    const int64_t ranks = job_.topology().ranks, count = table_.shape.count();
    const Operand all = e_.tensor("tables", DType::F32, {ranks, count}, Role::Staging);
    e_.op("gather_table", AllGather{Ranks::Parts}, {read(table_), write(flat(all))}, Lane::Gather);
    e_.op("sum_table", SumRanks{}, {read(all), write(job_.storage.table(group))});
  }

  // ---- Constants: every rank has all of them ----

  // Computes the norms of the rows of adapted weights, as products take them, and begins the norms that are trained
  // with them, or with those of the adapter's file.
  void fill_constants(int group) {
    e_.scope(fmt::format("group.{}.constants", group));
    ProgramPlacement placement(job_, e_, nullptr);
    for (const LayerParams& layer : job_.table.layers)
      for (const Linear* linear : layer.linears())
        if (layer.group == group && linear->lora.scales_rows()) fill_constants(*linear, placement);
    lower_reads(e_, reads_, file_bytes_, range_bytes(file_bytes_, job_.topology().ranks));
    reads_.clear();
  }

  void fill_constants(const Linear& linear, ProgramPlacement& placement) {
    const Lora& lora = linear.lora;
    // A merge copies weights from file to file, and needs no norms.
    const bool held = job_.layout().holds(linear.weight);
    std::optional<Operand> weight;
    if (held) weight = read(placement.weight(linear.weight, linear.count));
    for (size_t i = 0; i < lora.parts.size(); i++) {
      const LoraPart& part = lora.parts[i];
      const auto id = static_cast<ParamId>(i);
      const Operand norms = job_.storage.constant(lora.row_norms + id),
                    initial = job_.storage.constant(lora.initial_magnitude + id);
      if (weight) e_.op("norms", RowNorms{}, {rows(*weight, part.row_begin, part.row_end), write(norms)});
      if (const auto* const place = std::get_if<TensorPlace>(&source(lora.initial_magnitude + id)))
        reads_.push_back(stored_as(e_, {write(initial)}, *place));
      else
        e_.op("magnitudes", Copy{}, {read(norms), write(initial)});
    }
  }

  // ---- Arrays that other ranks own parts of ----

  void allgather_group(int group) {
    e_.scope(fmt::format("group.{}.allgather", group));
    for (const SegmentKind kind : kSegmentKinds)
      for (const Array& array : job_.storage.weights(group, kind))
        allgather(job_, e_, array.sharded, elements_of(group, kind));
    for (const Array& state : job_.storage.states(group))
      if (state.name == "low")
        allgather(job_, e_, state.sharded, elements_of(group, SegmentKind::Trained));
      else
        clear(state.sharded.values);
    for (const Layout::Run& run : job_.layout().segment(group, SegmentKind::Trained).runs)
      for (ParamId id = run.first; id < run.first + run.count; id++)
        for (const MatrixState& state : job_.storage.matrix_states(id)) clear(state.values);
  }

  void clear(const Operand& array) {
    const int64_t count = array.shape.count(), tile = on_device(e_.set(), array) ? count : kFillTile;
    for (int64_t begin = 0; begin < count; begin += tile) {
      const Operand target = elements(array, begin, std::min(begin + tile, count)), zero = allocate(e_, "zero", target);
      e_.op("clear", Fill{}, {write(zero)});
      store(e_, "zero", zero, target);
    }
  }

  const JobContext& job_;
  Emitter e_;
  const std::vector<ParamSource>& sources_;
  const std::vector<uint64_t>& file_bytes_;
  std::vector<TensorRead> reads_;      // of the group in hand
  std::map<ParamId, Operand> scales_;  //   this rank's, before they are quantized
  Operand table_;                      //   the table's values that this rank finds
};

}  // namespace

void allgather(const JobContext& job, Emitter& e, const ShardedArray& sharded, int64_t elements) {
  if (!sharded.sharers) return;
  const Operand part = slice(sharded, job.layout().part(elements));
  const Operand mine = fetch(e, "part", part, Role::Staging), whole = allocate(e, "whole", sharded.values);
  e.op("gather", AllGather{*sharded.sharers}, {read(mine), write(whole)}, Lane::Gather);
  store(e, "whole", whole, sharded.values);
}

void lower_load(const JobContext& job, ProgramId program, const std::vector<ParamSource>& sources,
                const std::vector<uint64_t>& file_bytes) {
  Loader(job, program, sources, file_bytes).emit();
}

}  // namespace snug
