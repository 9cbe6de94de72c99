// Implements Schema::ApplyFile (common/config/schema.h): reads a configuration file, which is a
// YAML map from field names to scalars, or to lists of scalars for list fields.
#include <yaml-cpp/yaml.h>

#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/config/schema.h"

namespace tandem::config {
namespace {

// A hand-written configuration of at most kMaxFields fields is far below this.
constexpr size_t kFileBytesMax = 1 << 20;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    return absl::NotFoundError(absl::StrCat("configuration file ", path, ": cannot be read"));
  std::string text(kFileBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) {
    return absl::NotFoundError(absl::StrCat("configuration file ", path, ": cannot be read"));
  }
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("configuration file ", path, ": expected at most ", kFileBytesMax, " bytes"));
  }
  return text;
}

std::string At(const std::string& path, const YAML::Node& node) {
  return absl::StrCat(path, ":", node.Mark().line + 1);
}

// A scalar's text, or a list's items joined by commas, which the parser of list fields expects.
absl::StatusOr<std::string> TextOf(const YAML::Node& node, const Schema::Field& field,
                                   const std::string& where) {
  if (node.IsScalar()) return node.Scalar();
  if (field.is_list && node.IsSequence()) {
    std::vector<std::string> items;
    for (const YAML::Node& item : node) {
      if (!item.IsScalar() || item.Scalar().find(',') != std::string::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat(field.name, " (", where, "): expected a list of strings without commas"));
      }
      items.push_back(item.Scalar());
    }
    return absl::StrJoin(items, ",");
  }
  return absl::InvalidArgumentError(absl::StrCat(field.name, " (", where, "): expected ",
                                                 field.expected, ", found ",
                                                 node.IsNull() ? "nothing" : "a nested structure"));
}

absl::StatusOr<YAML::Node> LoadYaml(const std::string& path, const std::string& text) {
  // yaml-cpp reports errors as exceptions; this function turns them into a Status.
  try {
    return YAML::Load(text);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.mark.line + 1, ": not YAML: ", error.msg));
  }
}

}  // namespace

absl::Status Schema::ApplyFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  ASSIGN_OR_RETURN(const YAML::Node root, LoadYaml(path, text));
  if (root.IsNull()) return absl::OkStatus();
  if (!root.IsMap()) {
    return absl::InvalidArgumentError(
        absl::StrCat(At(path, root), ": expected a map from field names to values"));
  }
  std::set<std::string> seen;
  for (const auto& entry : root) {
    const std::string where = At(path, entry.first);
    if (!entry.first.IsScalar()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": expected a field's name as key"));
    }
    const std::string name = absl::StrReplaceAll(entry.first.Scalar(), {{"_", "-"}});
    Field* field = Find(name);
    if (field == nullptr) {
      const std::string nearest = Nearest(name, FieldNames());
      return absl::InvalidArgumentError(
          absl::StrCat("unknown key '", entry.first.Scalar(), "' (", where, ")",
                       nearest.empty() ? "; --help lists what is known"
                                       : absl::StrCat("; nearest known: ", nearest)));
    }
    if (!seen.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat(name, " (", where, "): given twice"));
    }
    ASSIGN_OR_RETURN(const std::string value, TextOf(entry.second, *field, where));
    RETURN_IF_ERROR(Assign(*field, value, Origin::kFile, where));
  }
  return absl::OkStatus();
}

}  // namespace tandem::config
