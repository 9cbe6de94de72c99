#include "cli/cluster/log_field.h"

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem::cli {

std::string LogField(absl::string_view line, absl::string_view key) {
  if (absl::StartsWith(line, "{")) {
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto found = object.is_object() ? object.find(std::string(key)) : object.end();
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
  }
  const std::string name = absl::StrCat(" ", key, "=");
  const size_t at = line.find(name);
  if (at == absl::string_view::npos) return "";
  line.remove_prefix(at + name.size());
  if (!absl::StartsWith(line, "\"")) return std::string(line.substr(0, line.find(' ')));
  // Quotes within are escaped.
  size_t end = 1;
  while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
  std::string value;
  return end < line.size() && absl::CUnescape(line.substr(1, end - 1), &value) ? value : "";
}

}  // namespace tandem::cli
