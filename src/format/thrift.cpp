#include "format/thrift.h"

namespace snug {
namespace {

constexpr int kMaxDepth = 64;

}  // namespace

bool ThriftReader::boolean(Field field) {
  if (field.type != Type::True && field.type != Type::False) fail("a boolean");
  return field.type == Type::True;
}

int64_t ThriftReader::integer(Field field) {
  if (field.type == Type::Byte) return static_cast<int8_t>(byte());
  if (field.type != Type::I16 && field.type != Type::I32 && field.type != Type::I64) fail("an integer");
  return zigzag();
}

std::string_view ThriftReader::binary(Field field) {
  if (field.type != Type::Binary) fail("a string");
  return take(varint());
}

ThriftReader::List ThriftReader::read_list(Field field) {
  if (field.type != Type::List && field.type != Type::Set) fail("a list");
  const uint8_t head = byte();
  List list{static_cast<Type>(head & 15), static_cast<uint64_t>(head >> 4)};
  if (list.size == 15) list.size = varint();
  // Every element has at least a byte.
  if (list.size > bytes_.size() - at_) throw ThriftTruncated(fmt::format("{}: found a list that its end cuts", name_));
  return list;
}

void ThriftReader::skip(Type type, bool in_list) {
  switch (type) {
    case Type::True:
    case Type::False:
      if (in_list) byte();
      return;
    case Type::Byte:
      byte();
      return;
    case Type::I16:
    case Type::I32:
    case Type::I64:
      varint();
      return;
    case Type::Double:
      take(8);
      return;
    case Type::Binary:
      take(varint());
      return;
    case Type::List:
    case Type::Set: {
      enter();
      const List list = read_list({type, 0});
      for (uint64_t i = 0; i < list.size; ++i) skip(list.type, true);
      --depth_;
      return;
    }
    case Type::Map: {
      enter();
      const uint64_t size = varint();
      if (size > bytes_.size() - at_) throw ThriftTruncated(fmt::format("{}: found a map that its end cuts", name_));
      const uint8_t types = size > 0 ? byte() : 0;
      for (uint64_t i = 0; i < size; ++i) {
        skip(static_cast<Type>(types >> 4), true);
        skip(static_cast<Type>(types & 15), true);
      }
      --depth_;
      return;
    }
    case Type::Struct:
      read_struct([&](Field field) { skip(field.type); });
      return;
    default:
      fail("a type of Thrift's compact protocol");
  }
}

void ThriftReader::fail(std::string_view expected) const {
  user_error("{}: found something else at byte {} of its metadata, expected {}", name_, at_, expected);
}

void ThriftReader::enter() {
  if (++depth_ > kMaxDepth) fail(fmt::format("at most {} levels", kMaxDepth));
}

ThriftReader::Field ThriftReader::next_field(int64_t& id) {
  const uint8_t head = byte();
  const auto type = static_cast<Type>(head & 15);
  if (type == Type::Stop) return {};
  const int64_t before = id;
  id = head >> 4 ? before + (head >> 4) : zigzag();
  if (id < INT16_MIN || id > INT16_MAX) fail("a field number of 16 bits");
  return {type, id};
}

uint8_t ThriftReader::byte() { return static_cast<uint8_t>(take(1)[0]); }

uint64_t ThriftReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t next = byte();
    value |= uint64_t{next & 127u} << shift;
    if (next < 128) return value;
  }
  fail("an integer of 64 bits");
}

int64_t ThriftReader::zigzag() {
  const uint64_t value = varint();
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

std::string_view ThriftReader::take(uint64_t count) {
  if (count > bytes_.size() - at_) throw ThriftTruncated(fmt::format("{}: its metadata ends early", name_));
  const std::string_view out(reinterpret_cast<const char*>(bytes_.data()) + at_, static_cast<size_t>(count));
  at_ += static_cast<size_t>(count);
  return out;
}

}  // namespace snug
