#include "format/pickle.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "format/load.h"

namespace snug {
namespace {

// These limits of memory are far above what models need: half a million tensors.
constexpr size_t kMaxValues = 1u << 22;
constexpr size_t kMaxStack = 1u << 20;  // values on the stack, marks, and values that are stored to be referred to
constexpr size_t kMaxDimensions = 16;
constexpr size_t kMaxName = 1024;
constexpr size_t kMaxKey = 64;  // of a storage, which torch numbers

// Lists the storage types and dtypes of torch, and how safetensors spells it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 28> kTypes{{
    {"torch.DoubleStorage", "F64"},
    {"torch.FloatStorage", "F32"},
    {"torch.HalfStorage", "F16"},
    {"torch.BFloat16Storage", "BF16"},
    {"torch.LongStorage", "I64"},
    {"torch.IntStorage", "I32"},
    {"torch.ShortStorage", "I16"},
    {"torch.CharStorage", "I8"},
    {"torch.ByteStorage", "U8"},
    {"torch.BoolStorage", "BOOL"},
    {"torch.UntypedStorage", "U8"},
    {"torch.storage.UntypedStorage", "U8"},
    {"torch.float64", "F64"},
    {"torch.float32", "F32"},
    {"torch.float16", "F16"},
    {"torch.bfloat16", "BF16"},
    {"torch.int64", "I64"},
    {"torch.int32", "I32"},
    {"torch.int16", "I16"},
    {"torch.int8", "I8"},
    {"torch.uint8", "U8"},
    {"torch.bool", "BOOL"},
    {"torch.uint16", "U16"},
    {"torch.uint32", "U32"},
    {"torch.uint64", "U64"},
    {"torch.float8_e4m3fn", "F8_E4M3"},
    {"torch.float8_e5m2", "F8_E5M2"},
    {"torch.float8_e8m0fnu", "F8_E8M0"},
}};

// Says what a call makes.
enum class Callable : uint8_t { Dictionary, Tensor, TypedTensor, Parameter, Size };
constexpr std::array<std::pair<std::string_view, Callable>, 7> kCallables{{
    {"collections.OrderedDict", Callable::Dictionary},
    {"torch._utils._rebuild_tensor", Callable::Tensor},
    {"torch._utils._rebuild_tensor_v2", Callable::Tensor},
    {"torch._utils._rebuild_tensor_v3", Callable::TypedTensor},
    {"torch._utils._rebuild_parameter", Callable::Parameter},
    {"torch._utils._rebuild_parameter_with_state", Callable::Parameter},
    {"torch.Size", Callable::Size},
}};

template <class Table>
auto look_up(const Table& table, std::string_view name) {
  const auto row = std::ranges::find(table, name, [](const auto& r) { return r.first; });
  return row == table.end() ? std::nullopt : std::optional(row->second);
}

// These opcodes are refused; they are named as Python's pickletools names them: those that make objects of classes.
constexpr std::array<std::pair<uint8_t, std::string_view>, 15> kRefusedOpcodes{{
    {'i', "INST"},
    {'o', "OBJ"},
    {0x81, "NEWOBJ"},
    {0x92, "NEWOBJ_EX"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {'P', "PERSID"},
    {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"},
    {0x96, "BYTEARRAY8"},
    {0x97, "NEXT_BUFFER"},
    {'F', "FLOAT"},
    {0x98, "READONLY_BUFFER"},
}};

using Index = uint32_t;

enum class Kind : uint8_t { None, Bool, Integer, Float, Text, Bytes, Tuple, List, Dictionary, Global, Storage, Tensor };

std::string_view words(Kind kind) {
  constexpr std::array<std::string_view, 12> kWords{"None",         "a boolean", "an integer", "a number",
                                                    "a text",       "bytes",     "a tuple",    "a list",
                                                    "a dictionary", "a class",   "a storage",  "a tensor"};
  return kWords[static_cast<size_t>(kind)];
}

// Holds a value. Values refer to each other by number, as references may form circles.
struct Value {
  Kind kind = Kind::None;
  int64_t number = 0;          // Bool, Integer; Storage: elements
  std::string text = {};       // Text, Bytes; Integer: its bytes; Global: its name; Storage: its key
  std::string_view type = {};  // Storage, Tensor
  std::vector<Index> items =
      {};  // Tuple, List; Dictionary: keys and values in turn; Tensor: storage, offset, shape, strides
};

class Unpickler {
 public:
  Unpickler(std::string_view bytes, size_t at, std::string_view source) : bytes_(bytes), at_(at), source_(source) {}

  // Returns the value that the pickle leaves behind.
  const Value& run() {
    while (true) {
      opcode_at_ = at_;
      const uint8_t opcode = byte();
      if (opcode == '.') return (*this)[pop()];
      if (!push_constant(opcode) && !push_text(opcode) && !use_stack(opcode) && !use_memo(opcode) && !call(opcode))
        refuse_opcode(opcode);
    }
  }

  size_t at() const { return at_; }
  const Value& operator[](Index index) const { return values_[index]; }

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{}, pickle, byte {}: {}", source_, opcode_at_, fmt::format(format, std::forward<Args>(args)...));
  }

  [[noreturn]] void refuse(std::string_view what) const {
    fail(
        "found {}, expected dictionaries of tensors and nothing else: a pickle can run any code, and this one is "
        "not read; convert it to safetensors where it is trusted",
        what);
  }

 private:
  // ---- Bytes --------------------------------------------------------------------------------------------------------

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) fail("found {} bytes, expected {}: it is cut short", bytes_.size() - at_, count);
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  uint8_t byte() { return static_cast<uint8_t>(take(1)[0]); }
  template <class T>
  T number() {
    return load<T>(std::as_bytes(std::span(take(sizeof(T)))).data());
  }
  std::string_view line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == bytes_.npos) fail("found no end of a line");
    const std::string_view text = take(end - at_);
    take(1);
    return text;
  }

  // ---- Stack --------------------------------------------------------------------------------------------------------

  void push(Value value) {
    if (values_.size() >= kMaxValues) fail("found more than {} values", kMaxValues);
    push_index(static_cast<Index>(values_.size()));
    values_.push_back(std::move(value));
  }
  void push_index(Index value) {
    if (stack_.size() >= kMaxStack) fail("found more than {} values on the stack", kMaxStack);
    stack_.push_back(value);
  }
  void push(Kind kind, int64_t number = 0) { push(Value{.kind = kind, .number = number}); }
  void push_text(Kind kind, std::string_view text) { push(Value{.kind = kind, .text = std::string(text)}); }
  void push_items(Kind kind, std::vector<Index> items) { push(Value{.kind = kind, .items = std::move(items)}); }

  // Requires values on the stack; nothing reaches below the last mark.
  void require(size_t count) const {
    if (stack_.size() - floor() < count)
      fail("found {} values on the stack, expected {}", stack_.size() - floor(), count);
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Index pop() {
    require(1);
    const Index top = stack_.back();
    stack_.pop_back();
    return top;
  }
  std::vector<Index> pop(size_t count) {
    require(count);
    std::vector<Index> items(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }
  std::vector<Index> pop_to_mark() {
    if (marks_.empty()) fail("found no mark on the stack, expected one");
    std::vector<Index> items = pop(stack_.size() - marks_.back());
    marks_.pop_back();
    return items;
  }
  Value& top(Kind kind) {
    require(1);
    Value& value = values_[stack_.back()];
    if (value.kind != kind) fail("found {}, expected {}", words(value.kind), words(kind));
    return value;
  }

  // ---- Opcodes: each returns whether the opcode is of its kind ------------------------------------------------------

  void push_integer(std::string_view bytes) {
    if (bytes.size() > 8) return push_text(Kind::Integer, bytes);
    uint64_t value = !bytes.empty() && static_cast<int8_t>(bytes.back()) < 0 ? UINT64_MAX : 0;
    for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
    push(Value{.kind = Kind::Integer, .number = static_cast<int64_t>(value), .text = std::string(bytes)});
  }

  bool push_constant(uint8_t opcode) {
    switch (opcode) {
      case 0x80:  // PROTO
        if (const uint8_t protocol = byte(); protocol > 5) fail("found protocol {}, expected 0 to 5", protocol);
        return true;
      case 0x95:  // FRAME
        number<uint64_t>();
        return true;
      case 'N':
        return push(Kind::None), true;
      case 0x88:
        return push(Kind::Bool, 1), true;
      case 0x89:
        return push(Kind::Bool, 0), true;
      case 'J':
        return push_integer(take(4)), true;
      case 'K':
        return push(Kind::Integer, byte()), true;
      case 'M':
        return push(Kind::Integer, number<uint16_t>()), true;
      case 0x8a:  // LONG1
        return push_integer(take(byte())), true;
      case 0x8b:  // LONG4
        return push_integer(take(number<uint32_t>())), true;
      case 'G':
        take(8);
        return push(Kind::Float), true;
      default:
        return false;
    }
  }

  bool push_text(uint8_t opcode) {
    switch (opcode) {
      case 'X':
        return push_text(Kind::Text, take(number<uint32_t>())), true;
      case 0x8c:
        return push_text(Kind::Text, take(byte())), true;
      case 0x8d:
        return push_text(Kind::Text, take(number<uint64_t>())), true;
      case 'T':  // of Python 2
        return push_text(Kind::Text, take(number<uint32_t>())), true;
      case 'U':
        return push_text(Kind::Text, take(byte())), true;
      case 'B':
        return push_text(Kind::Bytes, take(number<uint32_t>())), true;
      case 'C':
        return push_text(Kind::Bytes, take(byte())), true;
      default:
        return false;
    }
  }

  bool use_stack(uint8_t opcode) {
    switch (opcode) {
      case '(':
        if (marks_.size() >= kMaxStack) fail("found more than {} marks on the stack", kMaxStack);
        return marks_.push_back(stack_.size()), true;
      case '0':
        return pop(), true;
      case '1':
        return pop_to_mark(), true;
      case ')':
        return push(Kind::Tuple), true;
      case ']':
        return push(Kind::List), true;
      case '}':
        return push(Kind::Dictionary), true;
      case 't':
        return push_items(Kind::Tuple, pop_to_mark()), true;
      case 'l':
        return push_items(Kind::List, pop_to_mark()), true;
      case 'd': {
        std::vector<Index> items = pop_to_mark();
        push(Kind::Dictionary);
        return extend(Kind::Dictionary, items), true;
      }
      case 0x85:
      case 0x86:
      case 0x87:
        return push_items(Kind::Tuple, pop(opcode - 0x84u)), true;
      case 'a':
        return extend(Kind::List, pop(1)), true;
      case 'e':
        return extend(Kind::List, pop_to_mark()), true;
      case 's':
        return extend(Kind::Dictionary, pop(2)), true;
      case 'u':
        return extend(Kind::Dictionary, pop_to_mark()), true;
      default:
        return false;
    }
  }

  void extend(Kind kind, const std::vector<Index>& more) {
    if (kind == Kind::Dictionary && more.size() % 2 != 0) fail("found a key without a value");
    std::vector<Index>& items = top(kind).items;
    items.insert(items.end(), more.begin(), more.end());
  }

  bool use_memo(uint8_t opcode) {
    switch (opcode) {
      case 'q':
        return memorize(byte()), true;
      case 'r':
        return memorize(number<uint32_t>()), true;
      case 0x94:
        return memorize(static_cast<uint32_t>(memo_.size())), true;
      case 'h':
        return recall(byte()), true;
      case 'j':
        return recall(number<uint32_t>()), true;
      default:
        return false;
    }
  }

  void memorize(uint32_t key) {
    require(1);
    memo_[key] = stack_.back();
    if (memo_.size() > kMaxStack) fail("found more than {} values that are stored to be referred to", kMaxStack);
  }
  void recall(uint32_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) fail("found a reference to value {}, which was not stored", key);
    push_index(found->second);
  }

  bool call(uint8_t opcode) {
    switch (opcode) {
      case 'c': {  // GLOBAL
        const std::string_view module = line();
        return push_global(module, line()), true;
      }
      case 0x93: {  // STACK_GLOBAL
        const std::vector<Index> names = pop(2);
        for (const Index name : names)
          if ((*this)[name].kind != Kind::Text) refuse("opcode STACK_GLOBAL without a name");
        return push_global(values_[names[0]].text, values_[names[1]].text), true;
      }
      case 'R': {  // REDUCE
        const std::vector<Index> parts = pop(2);
        return reduce((*this)[parts[0]], (*this)[parts[1]]), true;
      }
      case 'b': {  // BUILD: attributes of an ordered dictionary, which say nothing about tensors
        const Index state = pop();
        require(1);
        if ((*this)[stack_.back()].kind != Kind::Dictionary || (*this)[state].kind != Kind::Dictionary)
          refuse(fmt::format("opcode BUILD of {}", words((*this)[stack_.back()].kind)));
        return true;
      }
      case 'Q':  // BINPERSID
        return push_storage((*this)[pop()]), true;
      default:
        return false;
    }
  }

  void push_global(std::string_view module, std::string_view name) {
    const std::string whole = fmt::format("{}.{}", module, name);
    if (!look_up(kTypes, whole) && !look_up(kCallables, whole))
      refuse(fmt::format("the global '{}'", whole.substr(0, kMaxName)));
    push_text(Kind::Global, whole);
  }

  // Reads ('storage', type, key, device, elements), and in old files which part of another storage it is.
  void push_storage(const Value& id) {
    const auto is = [&](size_t i, Kind kind) { return (*this)[id.items[i]].kind == kind; };
    const bool known = id.kind == Kind::Tuple && (id.items.size() == 5 || id.items.size() == 6) && is(0, Kind::Text) &&
                       (*this)[id.items[0]].text == "storage" && is(1, Kind::Global) && is(2, Kind::Text) &&
                       (*this)[id.items[2]].text.size() <= kMaxKey && is(4, Kind::Integer) &&
                       (id.items.size() == 5 || is(5, Kind::None));
    const auto type = known ? look_up(kTypes, (*this)[id.items[1]].text) : std::nullopt;
    if (!type) refuse("a persistent id of another form than torch's storages");
    const int64_t elements = (*this)[id.items[4]].number;
    if (elements < 0) fail("found a storage of {} elements", elements);
    push(Value{.kind = Kind::Storage, .number = elements, .text = (*this)[id.items[2]].text, .type = *type});
  }

  void reduce(const Value& global, const Value& arguments) {
    const auto callable = global.kind == Kind::Global ? look_up(kCallables, global.text) : std::nullopt;
    if (!callable || arguments.kind != Kind::Tuple)
      refuse(global.kind == Kind::Global ? fmt::format("a call of '{}'", global.text)
                                         : fmt::format("a call of {}", words(global.kind)));
    const std::vector<Index>& items = arguments.items;  // they stay in place, as values are never moved
    const auto require_arguments = [&](size_t least) {
      if (items.size() < least) fail("found {} arguments of '{}', expected {}", items.size(), global.text, least);
    };
    switch (*callable) {
      case Callable::Dictionary:
        if (!items.empty()) refuse("an ordered dictionary that is made of a list");
        return push(Kind::Dictionary);
      case Callable::Tensor:
        require_arguments(4);
        refuse_metadata(items, 6);
        return push_tensor(items, {});
      case Callable::TypedTensor:
        require_arguments(7);
        refuse_metadata(items, 7);
        if (const Value& dtype = (*this)[items[6]]; dtype.kind == Kind::Global)
          if (const auto type = look_up(kTypes, dtype.text)) return push_tensor(items, *type);
        refuse("a tensor without a dtype");
      case Callable::Parameter:
        require_arguments(1);
        if ((*this)[items[0]].kind != Kind::Tensor) refuse("a parameter that is no tensor");
        return push_index(items[0]);
      case Callable::Size:
        require_arguments(1);
        if ((*this)[items[0]].kind != Kind::Tuple) refuse("a torch.Size that is no tuple");
        return push_index(items[0]);
    }
  }

  // Refuses a tensor that is to be negated or conjugated when it is read.
  void refuse_metadata(const std::vector<Index>& items, size_t i) {
    if (items.size() <= i) return;
    const Value& metadata = (*this)[items[i]];
    if (metadata.kind != Kind::None && !metadata.items.empty())
      refuse("a tensor with metadata, such as one negated lazily");
  }

  void push_tensor(const std::vector<Index>& items, std::string_view type) {
    const auto is = [&](size_t i, Kind kind) { return (*this)[items[i]].kind == kind; };
    if (!is(0, Kind::Storage) || !is(1, Kind::Integer) || !is(2, Kind::Tuple) || !is(3, Kind::Tuple))
      refuse("a tensor of other arguments than storage, offset, sizes and strides");
    push(Value{.kind = Kind::Tensor,
               .type = type.empty() ? (*this)[items[0]].type : type,
               .items = {items.begin(), items.begin() + 4}});
  }

  [[noreturn]] void refuse_opcode(uint8_t opcode) const {
    const auto row = std::ranges::find(kRefusedOpcodes, opcode, [](const auto& r) { return r.first; });
    refuse(row != kRefusedOpcodes.end() ? fmt::format("opcode {}", row->second)
                                        : fmt::format("opcode 0x{:02x}", opcode));
  }
  std::string_view bytes_;
  size_t at_, opcode_at_ = 0;
  std::string_view source_;
  std::deque<Value> values_;
  std::vector<Index> stack_;
  std::vector<size_t> marks_;
  std::map<uint32_t, Index> memo_;
};

// Returns sizes or strides of a tensor.
std::vector<int64_t> integers(const Unpickler& values, const Value& tuple, std::string_view tensor) {
  std::vector<int64_t> numbers;
  for (const Index item : tuple.items) {
    const Value& value = values[item];
    if (value.kind != Kind::Integer || value.text.size() > 8 || value.number < 0 || numbers.size() >= kMaxDimensions)
      values.fail("tensor '{}': found other sizes or strides than at most {} integers of 0 or more", tensor,
                  kMaxDimensions);
    numbers.push_back(value.number);
  }
  return numbers;
}

// Returns whether rows lie one behind the other, the last dimension fastest. The stride of a dimension of 1 says
// nothing.
bool is_contiguous(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  if (std::ranges::find(shape, 0) != shape.end()) return true;
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected || __builtin_mul_overflow(expected, shape[i], &expected)) return false;
  }
  return true;
}

PickledTensor tensor_of(const Unpickler& values, const Value& value, const std::string& name) {
  const Value& storage = values[value.items[0]];
  PickledTensor tensor{.storage = storage.text,
                       .storage_elements = static_cast<uint64_t>(storage.number),
                       .storage_type = std::string(storage.type),
                       .type = std::string(value.type),
                       .offset = 0,
                       .shape = integers(values, values[value.items[2]], name)};
  const std::vector<int64_t> strides = integers(values, values[value.items[3]], name);
  const int64_t offset = values[value.items[1]].number;
  if (strides.size() != tensor.shape.size() || offset < 0)
    values.fail("tensor '{}': found {} sizes, {} strides, offset {}", name, tensor.shape.size(), strides.size(),
                offset);
  if (!is_contiguous(tensor.shape, strides))
    values.fail(
        "tensor '{}': found sizes [{}] with strides [{}], expected rows one behind the other: a transposed or "
        "expanded tensor; .contiguous() before it is saved makes it plain",
        name, fmt::join(tensor.shape, ", "), fmt::join(strides, ", "));
  tensor.offset = static_cast<uint64_t>(offset);
  return tensor;
}

// Returns whether the dictionary is torch's own about the machine and has "little_endian" false.
bool says_big_endian(const Unpickler& values, const Value& dictionary) {
  for (size_t i = 0; i < dictionary.items.size(); i += 2) {
    const Value &key = values[dictionary.items[i]], &value = values[dictionary.items[i + 1]];
    if (key.text == "little_endian" && value.kind == Kind::Bool) return value.number == 0;
  }
  return false;
}

void add_tensors(const Unpickler& values, const Value& dictionary, Pickled& result) {
  result.kind = Pickled::Kind::Tensors;
  for (size_t i = 0; i < dictionary.items.size(); i += 2) {
    const Value &key = values[dictionary.items[i]], &value = values[dictionary.items[i + 1]];
    if (key.kind != Kind::Text || key.text.size() > kMaxName)
      values.fail("found {} as a key, expected the name of a tensor", words(key.kind));
    if (value.kind != Kind::Tensor)
      values.fail("found {} under '{}', expected a tensor: the state_dict of a model alone", words(value.kind),
                  key.text);
    if (!result.tensors.emplace(key.text, tensor_of(values, value, key.text)).second)
      values.fail("found tensor '{}' twice", key.text);
  }
}

}  // namespace

Pickled read_pickle(std::string_view bytes, size_t& at, std::string_view source) {
  check(at <= bytes.size(), "a pickle begins at {} of {} bytes", at, bytes.size());
  Unpickler values(bytes, at, source);
  const Value& top = values.run();
  at = values.at();
  Pickled result;
  const auto is_text = [&](Index item) {
    return values[item].kind == Kind::Text && values[item].text.size() <= kMaxName;
  };
  if (top.kind == Kind::Dictionary) {
    const bool any = std::ranges::any_of(top.items, [&](Index item) { return values[item].kind == Kind::Tensor; });
    result.big_endian = !any && says_big_endian(values, top);
    const bool plain = !any && std::ranges::any_of(top.items, [&](Index item) { return is_text(item); }) &&
                       std::ranges::any_of(top.items, [&](Index item) { return values[item].text == "little_endian"; });
    if (!plain) add_tensors(values, top, result);
  } else if (top.kind == Kind::List && top.items.size() <= kMaxValues && std::ranges::all_of(top.items, is_text)) {
    result.kind = Pickled::Kind::Texts;
    for (const Index item : top.items) result.texts.push_back(values[item].text);
  } else if (top.kind == Kind::Integer) {
    result.kind = Pickled::Kind::Number;
    result.number = top.text;
  }
  return result;
}

}  // namespace snug
