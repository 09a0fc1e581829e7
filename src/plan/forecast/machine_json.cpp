#include <algorithm>

#include "base/file.h"
#include "format/json.h"
#include "plan/forecast/machine.h"

namespace snug {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kFormat = 1;
// This is the format's older name, for profiles with the content of today's.
constexpr std::string_view kFirstFormat = "snug machine 5";
constexpr uint64_t kMaxFile = 8u << 20;
constexpr size_t kMaxSizes = 16, kMaxTables = 256;
constexpr double kLeast = 1e-12, kMost = 1e18;  // of every rate and size

// ---- Reading --------------------------------------------------------------------------------------------------------

// Reads an object with these keys and no others.
class Fields : public JsonObject {
 public:
  Fields(const JsonObject& object, std::initializer_list<std::string_view> keys) : JsonObject(object) {
    for (const auto& item : value().items())
      if (std::ranges::find(keys, item.key()) == keys.end()) fail(item.key(), "no such key");
  }

  double rate(std::string_view key) const { return number(key, kLeast, kMost); }
  uint64_t bytes(std::string_view key) const { return static_cast<uint64_t>(integer(key, 0, INT64_MAX)); }
  // Returns how many blocks of threads a link takes of a card.
  int blocks(std::string_view key, int64_t least) const { return static_cast<int>(integer(key, least, 64)); }
  int threads(std::string_view key) const { return static_cast<int>(integer(key, 1, 1 << 16)); }

  DType dtype(std::string_view key) const {
    const auto found = dtype_from_name(string(key));
    if (!found || (*found != DType::F32 && *found != DType::BF16 && *found != DType::U8)) fail(key, "fp32, bf16 or u8");
    return *found;
  }

  std::vector<double> rates(std::string_view key, size_t least, size_t most) const {
    const Json& list = array(key, least, most);
    std::vector<double> result;
    for (const Json& item : list) {
      if (!item.is_number()) fail(key, "a list of numbers");
      result.push_back(item.get<double>());
      if (!(result.back() >= kLeast && result.back() <= kMost)) fail(key, fmt::format("{} to {}", kLeast, kMost));
    }
    return result;
  }

  std::vector<double> rising(std::string_view key, size_t least) const {
    std::vector<double> result = rates(key, least, kMaxSizes);
    if (std::ranges::adjacent_find(result, std::greater_equal()) != result.end()) fail(key, "numbers that rise");
    return result;
  }

  RateCurve curve(std::string_view key) const {
    const Fields fields(object(key), {"sizes", "rates"});
    RateCurve curve;
    curve.sizes = fields.rising("sizes", 1);
    curve.rates = fields.rates("rates", curve.sizes.size(), curve.sizes.size());
    return curve;
  }

  const Json& array(std::string_view key, size_t least, size_t most) const {
    const Json* list = has(key) ? &at(key) : nullptr;
    if (!list || !list->is_array() || list->size() < least || list->size() > most)
      fail(key, least == most ? fmt::format("a list of {}", least) : fmt::format("a list of {} to {}", least, most));
    return *list;
  }
};

class Reader {
 public:
  Reader(std::string_view text, std::string source) : source_(std::move(source)), json_(parse_json(text, source_)) {}

  Machine read() {
    require_format(JsonObject(json_, source_));
    const Fields top(JsonObject(json_, source_),
                     {"format", "processor", "cores", "memory_bytes", "free_bytes", "group_limit_bytes", "disk",
                      "link_bytes_per_second", "product_sizes", "teams", "cards"});
    machine_.processor = top.string("processor");
    machine_.cores = top.threads("cores");
    machine_.memory_bytes = top.bytes("memory_bytes");
    machine_.free_bytes = top.bytes("free_bytes");
    if (top.has("group_limit_bytes")) machine_.group_limit_bytes = top.bytes("group_limit_bytes");
    machine_.link = top.rate("link_bytes_per_second");
    const Fields disk(top.object("disk"),
                      {"directory", "direct", "read_bytes_per_second", "write_bytes_per_second", "free_bytes"});
    machine_.disk = {disk.string("directory"), disk.boolean("direct"), disk.rate("read_bytes_per_second"),
                     disk.rate("write_bytes_per_second"), disk.bytes("free_bytes")};
    for (const double size : top.rising("product_sizes", 0)) {
      if (size != static_cast<double>(static_cast<int64_t>(size)) || size < 1)
        top.fail("product_sizes", "whole numbers");
      machine_.product_sizes.push_back(static_cast<int64_t>(size));
    }
    for_each(top, "teams", [&](const JsonObject& team) { machine_.teams.push_back(read_team(team)); });
    if (machine_.teams.empty() ||
        std::ranges::adjacent_find(machine_.teams, std::greater_equal(), &TeamRates::threads) != machine_.teams.end())
      top.fail("teams", "at least one, with numbers of threads that rise");
    if (top.has("cards")) machine_.cards = read_cards(top.object("cards"));
    return std::move(machine_);
  }

 private:
  void for_each(const Fields& object, std::string_view key, const std::function<void(const JsonObject&)>& body) const {
    const Json& list = object.array(key, 0, kMaxTables);
    for (size_t i = 0; i < list.size(); i++) body(JsonObject(list[i], source_, fmt::format("{}[{}]", key, i)));
  }

  TeamRates read_team(const JsonObject& object) const {
    const Fields fields(object, {"threads", "rates"});
    return {read_rates(fields.object("rates")), fields.threads("threads")};
  }

  Cards read_cards(const JsonObject& object) const {
    const Fields fields(
        object, {"name", "capability", "count", "memory_bytes", "free_bytes", "driver_bytes", "link_bytes",
                 "link_blocks", "nccl_bytes", "nccl_bytes_per_second", "nccl_blocks", "bus", "shared_bus",
                 "link_bytes_per_second", "host_link_bytes_per_second", "host_latency_seconds", "rates", "condition"});
    std::string name = fields.string("name");
    const Rates rates = read_rates(fields.object("rates"));
    // Older profiles do not have the capability, but they have rates of fp8 where it is 9.0.
    const int64_t unsaid = rates.fp8_flops > 0 ? 90 : 80;
    return {std::move(name),
            static_cast<int>(fields.integer("capability", 10, 1000, unsaid)),
            fields.threads("count"),
            fields.bytes("memory_bytes"),
            fields.bytes("free_bytes"),
            fields.bytes("driver_bytes"),
            read_bus(fields.object("bus")),
            read_bus(fields.object("shared_bus")),
            {fields.bytes("link_bytes"), fields.rate("link_bytes_per_second"), fields.blocks("link_blocks", 0)},
            {fields.bytes("nccl_bytes"), fields.rate("nccl_bytes_per_second"), fields.blocks("nccl_blocks", 1)},
            fields.rate("host_link_bytes_per_second"),
            fields.number("host_latency_seconds", 0, 1),
            rates,
            fields.string("condition", "")};
  }

  Bus read_bus(const JsonObject& object) const {
    const Fields fields(object, {"to_device_bytes_per_second", "from_device_bytes_per_second"});
    return {fields.rate("to_device_bytes_per_second"), fields.rate("from_device_bytes_per_second")};
  }

  Rates read_rates(const JsonObject& object) const {
    const Fields fields(object, {"op_seconds", "flops_per_second", "fp8_flops_per_second", "copy_bytes_per_second",
                                 "products", "attention", "kinds"});
    Rates rates;
    rates.op_seconds = fields.number("op_seconds", 0, 1);
    rates.flops = fields.rate("flops_per_second");
    rates.fp8_flops = fields.number("fp8_flops_per_second", 0, kMost);
    rates.copy = fields.curve("copy_bytes_per_second");
    for_each(fields, "products", [&](const JsonObject& o) { rates.products.push_back(read_products(o)); });
    for_each(fields, "attention", [&](const JsonObject& o) { rates.attention.push_back(read_attention(o)); });
    for_each(fields, "kinds", [&](const JsonObject& o) { rates.kinds.push_back(read_kind(o)); });
    // Head sizes must ascend, as rates are interpolated between neighbours.
    for (size_t i = 0; i < rates.attention.size(); i++)
      for (size_t j = 0; j < i; j++) {
        const AttentionRates &a = rates.attention[j], &b = rates.attention[i];
        if (a.dtype == b.dtype && a.backward == b.backward && a.head_dim >= b.head_dim)
          fields.fail("attention", "head sizes that rise");
      }
    return rates;
  }

  void require_format(const JsonObject& top) const {
    if (top.has("format") && top.at("format") == kFirstFormat) return;
    if (!top.has("format") || !top.at("format").is_number_integer())
      top.fail("format", fmt::format("{}: 'snug doctor' measures anew", kFormat));
    if (top.integer("format", 1, INT64_MAX) > kFormat)
      top.fail("format", fmt::format("{} at most: a newer snug made it", kFormat));
  }

  ProductRates read_products(const JsonObject& object) const {
    const Fields fields(object, {"dtype", "transpose_a", "transpose_b", "addend", "flops_per_second"});
    const size_t n = machine_.product_sizes.size();
    if (n == 0) fields.fail("flops_per_second", "no table without product_sizes");
    return {fields.dtype("dtype"), fields.boolean("transpose_a"), fields.boolean("transpose_b"),
            fields.boolean("addend"), fields.rates("flops_per_second", n * n * n, n * n * n)};
  }

  AttentionRates read_attention(const JsonObject& object) const {
    const Fields fields(object, {"dtype", "backward", "head_dim", "flops_per_second"});
    return {fields.dtype("dtype"), fields.boolean("backward"), fields.integer("head_dim", 1, 1 << 16),
            fields.curve("flops_per_second")};
  }

  KindRates read_kind(const JsonObject& object) const {
    const Fields fields(object, {"kind", "dtype", "bytes_per_second"});
    return {fields.string("kind"), fields.dtype("dtype"), fields.curve("bytes_per_second")};
  }

  std::string source_;
  Json json_;
  Machine machine_;
};

// ---- Writing --------------------------------------------------------------------------------------------------------

// Rounds to four digits, as no clock is more precise.
double rounded(double value) { return std::stod(fmt::format("{:.3e}", value)); }

std::vector<double> rounded(const std::vector<double>& values) {
  std::vector<double> result;
  for (const double value : values) result.push_back(rounded(value));
  return result;
}

OrderedJson curve_json(const RateCurve& curve) {
  return {{"sizes", rounded(curve.sizes)}, {"rates", rounded(curve.rates)}};
}

OrderedJson bus_json(const Bus& bus) {
  return {{"to_device_bytes_per_second", rounded(bus.to_device)},
          {"from_device_bytes_per_second", rounded(bus.from_device)}};
}

OrderedJson rates_json(const Rates& rates) {
  OrderedJson json{{"op_seconds", rounded(rates.op_seconds)},
                   {"flops_per_second", rounded(rates.flops)},
                   {"fp8_flops_per_second", rounded(rates.fp8_flops)},
                   {"copy_bytes_per_second", curve_json(rates.copy)},
                   {"products", OrderedJson::array()},
                   {"attention", OrderedJson::array()},
                   {"kinds", OrderedJson::array()}};
  for (const ProductRates& r : rates.products)
    json["products"].push_back({{"dtype", name(r.dtype)},
                                {"transpose_a", r.transpose_a},
                                {"transpose_b", r.transpose_b},
                                {"addend", r.addend},
                                {"flops_per_second", rounded(r.flops)}});
  for (const AttentionRates& r : rates.attention)
    json["attention"].push_back({{"dtype", name(r.dtype)},
                                 {"backward", r.backward},
                                 {"head_dim", r.head_dim},
                                 {"flops_per_second", curve_json(r.flops)}});
  for (const KindRates& r : rates.kinds)
    json["kinds"].push_back({{"kind", r.kind}, {"dtype", name(r.dtype)}, {"bytes_per_second", curve_json(r.bytes)}});
  return json;
}

}  // namespace

std::string write_machine(const Machine& machine) {
  OrderedJson json{{"format", kFormat},
                   {"processor", machine.processor},
                   {"cores", machine.cores},
                   {"memory_bytes", machine.memory_bytes},
                   {"free_bytes", machine.free_bytes},
                   {"group_limit_bytes", nullptr},
                   {"disk",
                    {{"directory", machine.disk.directory},
                     {"direct", machine.disk.direct},
                     {"read_bytes_per_second", rounded(machine.disk.read)},
                     {"write_bytes_per_second", rounded(machine.disk.write)},
                     {"free_bytes", machine.disk.free_bytes}}},
                   {"link_bytes_per_second", rounded(machine.link)},
                   {"product_sizes", machine.product_sizes},
                   {"teams", OrderedJson::array()},
                   {"cards", nullptr}};
  if (machine.group_limit_bytes) json["group_limit_bytes"] = *machine.group_limit_bytes;
  for (const TeamRates& team : machine.teams)
    json["teams"].push_back({{"threads", team.threads}, {"rates", rates_json(team)}});
  if (machine.cards)
    json["cards"] = {{"name", machine.cards->name},
                     {"capability", machine.cards->capability},
                     {"count", machine.cards->count},
                     {"memory_bytes", machine.cards->memory_bytes},
                     {"free_bytes", machine.cards->free_bytes},
                     {"driver_bytes", machine.cards->driver_bytes},
                     {"bus", bus_json(machine.cards->bus)},
                     {"shared_bus", bus_json(machine.cards->shared_bus)},
                     {"link_bytes", machine.cards->copies.bytes},
                     {"link_bytes_per_second", rounded(machine.cards->copies.rate)},
                     {"link_blocks", machine.cards->copies.blocks},
                     {"nccl_bytes", machine.cards->nccl.bytes},
                     {"nccl_bytes_per_second", rounded(machine.cards->nccl.rate)},
                     {"nccl_blocks", machine.cards->nccl.blocks},
                     {"host_link_bytes_per_second", rounded(machine.cards->node_link)},
                     {"host_latency_seconds", rounded(machine.cards->node_latency)},
                     {"rates", rates_json(machine.cards->rates)},
                     {"condition", machine.cards->condition}};
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Machine parse_machine(std::string_view json, const std::string& source) { return Reader(json, source).read(); }

Machine read_machine(const std::filesystem::path& path) {
  return parse_machine(read_text(path, kMaxFile), path.string());
}

}  // namespace snug
