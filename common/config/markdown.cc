// Implements Schema::Markdown (common/config/schema.h): the tables of docs/CONFIG.md.
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/config/schema.h"

namespace tandem::config {
namespace {

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"\n", " "}, {"<", "&lt;"}});
}

std::string DefaultCell(const Schema::Field& field) {
  if (field.required) return "required";
  if (field.default_text.empty()) return "";
  return absl::StrCat("`", Escaped(field.default_text), "`");
}

std::string RangeCell(const Schema::Field& field) {
  std::vector<std::string> parts;
  if (!field.choices.empty()) parts.push_back(absl::StrJoin(field.choices, ", "));
  if (!field.range.empty()) parts.push_back(field.range);
  if (!field.unit.empty()) parts.push_back(field.unit);
  return Escaped(absl::StrJoin(parts, " "));
}

}  // namespace

std::string Schema::Markdown() const {
  std::string out =
      absl::StrCat("## ", program_, "\n\n", Escaped(purpose_), "\n\n",
                   "| Flag and file key | Environment | Type | Default | Range, unit | Meaning |\n",
                   "|---|---|---|---|---|---|\n");
  for (const Field& field : fields_) {
    absl::StrAppend(&out, "| `--", field.name, "` | `", EnvironmentName(field), "` | ", field.type,
                    " | ", DefaultCell(field), " | ", RangeCell(field), " | ");
    absl::StrAppend(&out, Escaped(field.help), " |\n");
  }
  return out;
}

}  // namespace tandem::config
