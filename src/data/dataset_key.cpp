#include "data/dataset_key.h"

#include "data/dataset_fields.h"

namespace snug {
namespace {

// Returns each part with its length before it, so that different lists of parts give different texts.
std::string joined(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += fmt::format("{}:{} ", part.size(), part);
  return text;
}

std::string key_text(const std::string& value) { return value; }
std::string key_text(const std::filesystem::path& value) {
  return value.empty() ? "" : std::filesystem::absolute(value).string();
}
// Returns a template's text; the texts of BOS and EOS, which it has too, are the encoder's.
std::string key_text(const ChatTemplate& chat) {
  return joined({chat.name(), chat.jinja(), chat.for_tools() ? chat.for_tools()->jinja() : ""});
}
template <class T>
requires std::is_integral_v<T> || std::is_enum_v<T> std::string key_text(T value) {
  return fmt::format("{}", static_cast<int64_t>(value));
}
std::string key_text(double value) { return fmt::format("{}", value); }

template <class T, size_t N>
std::string key_text(const std::array<T, N>& values) {
  std::string text;
  for (const T& value : values) text += joined({key_text(value)});
  return text;
}

template <class T>
std::string key_text(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += joined({key_text(value)});
  return text;
}

template <class Record>
std::string key_of(const Record& record);

template <class T>
requires Visited<const T> std::string key_text(const T& record) { return key_of(record); }

template <class... T>
std::string key_text(const std::variant<T...>& value) {
  return fmt::format("{} ", value.index()) + std::visit([](const auto& one) { return key_text(one); }, value);
}

template <class T>
std::string key_text(const std::optional<T>& value) {
  return value ? joined({key_text(*value)}) : "nothing";
}

template <class T>
std::string key_text(const std::map<std::string, T>& values) {
  std::string text;
  for (const auto& [name, value] : values) text += joined({name, key_text(value)});
  return text;
}

template <class Record>
std::string key_of(const Record& record) {
  std::string text;
  visit_leaves(record, [&](const std::string& name, const auto& value) {
    const std::string shown = key_text(value);
    text += fmt::format("{} {}:{}\n", name, shown.size(), shown);
  });
  return text;
}

}  // namespace

std::string dataset_key(const DataOptions& options, const TextEncoder& encoder) {
  std::string key = key_of(options) + key_of(encoder);
  // Images stand beside their data, where others may stand beside equal data elsewhere; messages name the data's file.
  if (options.images)
    for (const std::filesystem::path& file : options.files) key += joined({"of", key_text(file)});
  return key;
}

std::string processor_key(const ImageProcessor& processor) { return key_of(processor); }

}  // namespace snug
