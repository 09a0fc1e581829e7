#include "format/protobuf.h"

#include <bit>

#include "base/error.h"

namespace snug {

void ProtobufReader::fail(const char* expected) const {
  user_error("{}: found something else at byte {} of a message of {}, expected {}, of a protocol buffer", source_, at_,
             bytes_.size(), expected);
}

uint64_t ProtobufReader::varint() {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (at_ >= bytes_.size()) fail("the rest of a number");
    const auto byte = static_cast<unsigned char>(bytes_[at_++]);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  fail("a number of at most 64 bits");
}

uint64_t ProtobufReader::fixed(size_t bytes) {
  if (bytes > bytes_.size() - at_) fail("the rest of a number");
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<unsigned char>(bytes_[at_ + i])} << 8 * i;
  at_ += bytes;
  return value;
}

bool ProtobufReader::next(Field& field) {
  if (at_ >= bytes_.size()) return false;
  const uint64_t key = varint();
  if (key >> 3 == 0 || key >> 3 > 0x1fffffff) fail("the number of a field");
  field = Field();
  field.number = static_cast<uint32_t>(key >> 3);
  field.type = static_cast<Type>(key & 7);
  switch (field.type) {
    case Type::Varint:
      field.value = varint();
      return true;
    case Type::Fixed64:
      field.value = fixed(8);
      return true;
    case Type::Fixed32:
      field.value = fixed(4);
      return true;
    case Type::Bytes: {
      const uint64_t size = varint();
      if (size > bytes_.size() - at_) fail("as many bytes as a field says");
      field.bytes = bytes_.substr(at_, size);
      at_ += size;
      return true;
    }
  }
  fail("a field of a known type");
}

std::string_view ProtobufReader::bytes_of(const Field& field) const {
  if (field.type != Type::Bytes) fail("bytes in a field");
  return field.bytes;
}

uint64_t ProtobufReader::number_of(const Field& field) const {
  if (field.type != Type::Varint) fail("a whole number in a field");
  return field.value;
}

float ProtobufReader::real(const Field& field) const {
  if (field.type != Type::Fixed32) fail("a number of 32 bits in a field");
  return std::bit_cast<float>(static_cast<uint32_t>(field.value));
}

}  // namespace snug
