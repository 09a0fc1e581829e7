// Reads the wire format of protocol buffers, in which SentencePiece's models are written. Every read is checked against
// the end of the bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace snug {

class ProtobufReader {
 public:
  enum class Type : uint8_t { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };
  // Holds one field of a message. Numbers are as on the wire; a float is its bits.
  struct Field {
    uint32_t number = 0;
    Type type = Type::Varint;
    uint64_t value = 0;
    std::string_view bytes;
  };

  // `source` names the file in errors and must outlive the reader, like the bytes.
  ProtobufReader(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  // Reads the next field; returns false at the end. Throws UserError for what is no field.
  bool next(Field& field);

  // Return values of fields. Throw UserError if the field has another type.
  std::string_view bytes_of(const Field& field) const;
  bool boolean(const Field& field) const { return number_of(field) != 0; }
  int64_t integer(const Field& field) const { return static_cast<int64_t>(number_of(field)); }
  float real(const Field& field) const;

 private:
  [[noreturn]] void fail(const char* expected) const;
  uint64_t varint();
  uint64_t fixed(size_t bytes);
  uint64_t number_of(const Field& field) const;

  std::string_view bytes_;
  const std::string& source_;
  size_t at_ = 0;
};

}  // namespace snug
