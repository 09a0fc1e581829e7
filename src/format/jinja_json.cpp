#include "format/jinja_json.h"

#include <string>
#include <vector>

namespace snug::jinja {
namespace {

constexpr size_t kMaxLevels = 64;

Value make(ListRep* rep) { return {Kind::List, rep}; }
Value make(DictRep* rep) { return {Kind::Dict, rep}; }

Value beyond_64_bits(const std::string& digits) { return {Kind::BigInt, new BigIntRep(digits)}; }

// Builds a value from the events of the library's parser.
class Builder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return add(Value::none()); }
  bool boolean(bool b) override { return add(Value(b)); }
  bool number_integer(int64_t i) override { return add(Value(i)); }
  bool number_unsigned(uint64_t u) override {
    return add(u > INT64_MAX ? beyond_64_bits(std::to_string(u)) : Value(static_cast<int64_t>(u)));
  }
  bool number_float(double d, const std::string& text) override {
    // The library hands an integer beyond 64 bits over as a float.
    return add(text.find_first_not_of("-0123456789") == std::string::npos ? beyond_64_bits(text) : Value(d));
  }
  bool string(std::string& text) override { return add(make_string(Text(std::move(text)))); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_array(size_t) override { return open(make(new ListRep)); }
  bool start_object(size_t) override { return open(make(new DictRep)); }
  bool key(std::string& text) override {
    open_.back().key = make_string(Text(std::move(text)));
    return true;
  }
  bool end_array() override { return close(); }
  bool end_object() override { return close(); }
  bool parse_error(size_t byte, const std::string&, const Json::exception& error) override {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) fail("found a number beyond 1e308 before byte {}", byte);
    fail("found no JSON at byte {}", byte);
  }

  Value take() { return std::move(whole_); }

 private:
  struct Open {
    Value container, key = {};
  };

  bool add(Value v) {
    if (open_.empty()) {
      whole_ = std::move(v);
      return true;
    }
    Open& at = open_.back();
    if (at.container.is(Kind::List)) {
      nest(*at.container.rep(), v);
      at.container.as<ListRep>().items.push_back(std::move(v));
    } else {
      at.container.as<DictRep>().set(std::move(at.key), std::move(v));
    }
    return true;
  }
  bool open(Value container) {
    if (open_.size() >= kMaxLevels) fail("found JSON of more than {} levels", kMaxLevels);
    open_.push_back({std::move(container)});
    return true;
  }
  bool close() {
    Value v = std::move(open_.back().container);
    open_.pop_back();
    return add(std::move(v));
  }

  std::vector<Open> open_;
  Value whole_;
};

}  // namespace

Value value_of_json(std::string_view text) {
  Builder builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) fail("found no JSON");
  return builder.take();
}

Value marked(const Value& v, Mark mark) {
  Value out = v;
  if (v.is(Kind::String)) {
    out = make_string(Text(text_of(v).bytes(), mark));
  } else if (v.is(Kind::List)) {
    std::vector<Value> items;
    for (const Value& item : v.as<ListRep>().items) items.push_back(marked(item, mark));
    out = make_list(std::move(items));
  } else if (v.is(Kind::Dict)) {
    auto* const dict = new DictRep;
    out = make(dict);
    for (const auto& [key, item] : v.as<DictRep>().entries) dict->set(marked(key, mark), marked(item, mark));
  }
  out.set_mark(mark);
  return out;
}

uint64_t bytes_of(const Value& v) {
  uint64_t bytes = 64;
  if (v.is(Kind::BigInt)) bytes += v.as<BigIntRep>().digits.size();
  if (v.is(Kind::String)) bytes += text_of(v).size();
  if (v.is(Kind::List))
    for (const Value& item : v.as<ListRep>().items) bytes += bytes_of(item);
  if (v.is(Kind::Dict))
    for (const auto& [key, item] : v.as<DictRep>().entries) bytes += bytes_of(key) + bytes_of(item);
  return bytes;
}

}  // namespace snug::jinja
