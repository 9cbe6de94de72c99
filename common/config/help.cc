// Implements Schema::Help (common/config/schema.h).
#include <algorithm>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/config/schema.h"

namespace tandem::config {
namespace {

constexpr size_t kColumns = 100;
constexpr size_t kHelpIndent = 6;

// Appends `text` with every line indented and at most kColumns wide, where words allow.
void AppendWrapped(absl::string_view text, size_t indent, std::string* out) {
  std::string line(indent, ' ');
  bool empty = true;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!empty && line.size() + 1 + word.size() > kColumns) {
      absl::StrAppend(out, line, "\n");
      line.assign(indent, ' ');
      empty = true;
    }
    absl::StrAppend(&line, empty ? "" : " ", word);
    empty = false;
  }
  if (!empty) absl::StrAppend(out, line, "\n");
}

std::string Details(const Schema::Field& field) {
  std::vector<std::string> parts;
  if (!field.choices.empty())
    parts.push_back(absl::StrCat("One of ", absl::StrJoin(field.choices, ", "), "."));
  if (!field.range.empty()) {
    parts.push_back(absl::StrCat("Range: ", field.range,
                                 field.unit.empty() ? "" : absl::StrCat(" ", field.unit), "."));
  } else if (!field.unit.empty()) {
    parts.push_back(absl::StrCat("Unit: ", field.unit, "."));
  }
  if (field.required) {
    parts.push_back("Required.");
  } else if (!field.default_text.empty()) {
    parts.push_back(absl::StrCat("Default: ", field.default_text, "."));
  }
  return absl::StrJoin(parts, " ");
}

void AppendField(const Schema::Field& field, std::string* out) {
  if (field.is_bool) {
    absl::StrAppend(out, "  --", field.name, ", --no-", field.name, "\n");
  } else {
    absl::StrAppend(out, "  --", field.name, "=<", field.type, ">\n");
  }
  AppendWrapped(absl::StrCat(field.help, " ", Details(field)), kHelpIndent, out);
}

}  // namespace

std::string Schema::Help() const {
  std::string out = absl::StrCat(
      "Usage: ", program_, " [flags]",
      positional_count_max_ > 0
          ? absl::StrCat(" [", positional_name_, positional_count_max_ > 1 ? " ...]" : "]")
          : "",
      "\n\n");
  AppendWrapped(purpose_, 0, &out);
  std::vector<std::string> groups;
  for (const Field& field : fields_) {
    if (std::find(groups.begin(), groups.end(), field.group) == groups.end()) {
      groups.push_back(field.group);
    }
  }
  for (const std::string& group : groups) {
    absl::StrAppend(&out, "\n", group.empty() ? "Flags" : group, ":\n");
    for (const Field& field : fields_) {
      if (field.group == group) AppendField(field, &out);
    }
  }
  absl::StrAppend(&out, "\nGeneral:\n",
                  "  --config=<file>\n      A YAML map from the names above to values.\n",
                  "  --print-config\n      Prints every value and where it came from.\n",
                  "  --help, --version\n\n");
  AppendWrapped(
      absl::StrCat("Every flag is also a key of the configuration file and an environment "
                   "variable: --some-name is ",
                   EnvironmentPrefix(),
                   "SOME_NAME. A flag wins over the environment, the environment over the "
                   "file, the file over the default."),
      0, &out);
  return out;
}

}  // namespace tandem::config
