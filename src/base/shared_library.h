// Opens libraries by name while snug runs: those that a machine may lack.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

namespace snug {

class SharedLibrary {
 public:
  // Opens the first of these that can be opened, names or paths; names are looked for where the program's own libraries
  // are, and where the dynamic linker looks; empty ones are passed over. `help` says where it comes from. Throws
  // DeviceError if there is none.
  SharedLibrary(std::initializer_list<const char*> names, const char* help);
  ~SharedLibrary();
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  // Sets a pointer to the library's function of this name. Throws DeviceError if it has none.
  template <class F>
  void get(const char* function, F*& pointer) const {
    pointer = reinterpret_cast<F*>(required(function));
  }
  // Returns that pointer, or null.
  template <class F>
  F* find(const char* function) const {
    return reinterpret_cast<F*>(symbol(function));
  }

 private:
  void* symbol(const char* function) const;
  void* required(const char* function) const;

  std::string name_;
  void* handle_ = nullptr;
};

// Returns the text of a version that a library gives as a number: "13.1.0" of 130100.
std::string version_text(int64_t version);

}  // namespace snug
