#include "common/model/architecture/registry.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem::model {

absl::StatusOr<ArchitectureRegistry> ArchitectureRegistry::Create(
    std::vector<Architecture> architectures) {
  absl::flat_hash_set<std::string> taken;
  for (const Architecture& architecture : architectures) {
    RETURN_IF_ERROR(ValidateArchitecture(architecture));
    const struct {
      absl::string_view what, name;
    } kNames[] = {{"name", architecture.name},
                  {"Hugging Face spelling", architecture.spelling.hugging_face},
                  {"GGUF spelling", architecture.spelling.gguf}};
    for (const auto& [what, name] : kNames) {
      if (!name.empty() && !taken.insert(absl::StrCat(what, " \"", name, "\"")).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("two architectures have the ", what, " \"", name, "\""));
      }
    }
  }
  return ArchitectureRegistry(std::move(architectures));
}

const ArchitectureRegistry& ArchitectureRegistry::BuiltIn() {
  static const ArchitectureRegistry kRegistry = [] {
    absl::StatusOr<ArchitectureRegistry> registry = Create(ListFamilies());
    TANDEM_CHECK(registry.ok(), registry.status().ToString());
    return *std::move(registry);
  }();
  return kRegistry;
}

absl::StatusOr<const Architecture*> ArchitectureRegistry::Find(CheckpointFormat format,
                                                               absl::string_view spelling) const {
  std::vector<absl::string_view> known;
  for (const Architecture& architecture : architectures_) {
    const absl::string_view own = architecture.spelling.in(format);
    if (own.empty()) continue;
    if (own == spelling) return &architecture;
    known.push_back(own);
  }
  return absl::UnimplementedError(
      absl::StrCat("architecture \"", spelling, "\" is not supported; supported in ",
                   format == CheckpointFormat::kGguf ? "GGUF" : "config.json", ": ",
                   absl::StrJoin(known, ", ")));
}

const Architecture* ArchitectureRegistry::FindByName(absl::string_view name) const {
  for (const Architecture& architecture : architectures_) {
    if (architecture.name == name) return &architecture;
  }
  return nullptr;
}

}  // namespace tandem::model
