// Reads Thrift's compact protocol, in which footers and page headers of Parquet files are written. Every read is
// checked against the end of the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace snug {

// Is thrown if the bytes end inside a value.
struct ThriftTruncated : UserError {
  using UserError::UserError;
};

class ThriftReader {
 public:
  enum class Type : uint8_t { Stop, True, False, Byte, I16, I32, I64, Double, Binary, List, Set, Map, Struct };
  struct Field {
    Type type = Type::Stop;
    int64_t id = 0;
  };
  struct List {
    Type type = Type::Stop;
    uint64_t size = 0;  // at most the number of bytes that are left
  };

  // `name` names the file in errors; both must outlive the reader.
  ThriftReader(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  size_t position() const { return at_; }

  // Calls visit(field) for each field of a struct; visit() reads the value or calls skip(field.type).
  template <class Visit>
  void read_struct(Visit&& visit) {
    enter();
    int64_t id = 0;
    for (Field field = next_field(id); field.type != Type::Stop; field = next_field(id)) visit(field);
    --depth_;
  }
  // Return values of fields. Throw UserError if the field has another type.
  bool boolean(Field field);
  int64_t integer(Field field);  // any width
  std::string_view binary(Field field);
  // Calls visit() for each struct of a list.
  template <class Visit>
  void read_structs(Field field, Visit&& visit) {
    const List list = read_list(field);
    if (list.size > 0 && list.type != Type::Struct) fail("a list of structs");
    for (uint64_t i = 0; i < list.size; ++i) visit();
  }
  List read_list(Field field);
  void skip(Type type, bool in_list = false);

  [[noreturn]] void fail(std::string_view expected) const;

 private:
  void enter();
  Field next_field(int64_t& id);
  uint8_t byte();
  uint64_t varint();
  int64_t zigzag();
  std::string_view take(uint64_t count);

  std::span<const std::byte> bytes_;
  const std::string& name_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace snug
