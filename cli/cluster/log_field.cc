#include "cli/cluster/log_field.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tandem::cli {
namespace {

// Where the quoted text that begins at `from` ends: its last quote, or the end of the line. Quotes
// within are escaped.
size_t EndOfQuoted(absl::string_view line, size_t from) {
  size_t end = from + 1;
  while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
  return std::min(end, line.size());
}

// Where the value of the field begins that `name`, " KEY=", introduces; npos without it.
size_t ValueOf(absl::string_view line, absl::string_view name) {
  for (size_t at = 0; at < line.size(); ++at) {
    if (absl::StartsWith(line.substr(at), name)) return at + name.size();
    if (absl::StartsWith(line.substr(at), "=\"")) at = EndOfQuoted(line, at + 1);
  }
  return absl::string_view::npos;
}

}  // namespace

std::string LogField(absl::string_view line, absl::string_view key) {
  if (absl::StartsWith(line, "{")) {
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto found = object.is_object() ? object.find(std::string(key)) : object.end();
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
  }
  const size_t at = ValueOf(line, absl::StrCat(" ", key, "="));
  if (at == absl::string_view::npos) return "";
  line.remove_prefix(at);
  if (!absl::StartsWith(line, "\"")) return std::string(line.substr(0, line.find(' ')));
  const size_t end = EndOfQuoted(line, 0);
  std::string value;
  return end < line.size() && absl::CUnescape(line.substr(1, end - 1), &value) ? value : "";
}

bool HasLogMessage(absl::string_view line, absl::string_view process, absl::string_view message) {
  if (absl::StartsWith(line, "{")) return LogField(line, "message") == message;
  const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(' ', 2));
  if (parts.size() < 3) return false;
  absl::string_view rest = parts[2];  // behind the time and the level
  absl::ConsumePrefix(&rest, absl::StrCat(process, " "));
  return absl::ConsumePrefix(&rest, message) && (rest.empty() || rest[0] == ' ');
}

std::string BriefLine(const std::string& process, const std::string& line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
  const absl::string_view level = words.size() > 1 ? words[1] : "";
  const auto has = [&](const char* message) { return HasLogMessage(line, process, message); };
  if (level != "INFO" && level != "DEBUG") return absl::StrCat("[", process, "] ", line);
  if (has("router started"))
    return absl::StrFormat("%-12sserves %s", process, LogField(line, "model"));
  if (has("node started"))
    return absl::StrFormat("%-12sready, %s KV blocks", process, LogField(line, "kv_blocks"));
  if (has("loading model"))
    return absl::StrFormat("%-12sloads %s", process, LogField(line, "path"));
  const bool asked_for = has("request ended") || has("throughput");
  return asked_for ? absl::StrCat("[", process, "] ", line) : "";
}

}  // namespace tandem::cli
