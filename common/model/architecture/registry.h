// All architectures that this build supports, found by the name that a checkpoint gives. The
// build lists the files of families/ (common/model/CMakeLists.txt), so a new file there is
// registered without a change anywhere else.
// Thread safety: const methods from any thread; BuiltIn() from any thread.
// Invariant: every description is valid and names are unique in each spelling.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/architecture/architecture.h"

namespace tandem::model {

class ArchitectureRegistry {
 public:
  // Errors: kInvalidArgument for a description that ValidateArchitecture refuses, and for two of
  // one name or spelling.
  static absl::StatusOr<ArchitectureRegistry> Create(std::vector<Architecture> architectures);

  // The registry of families/, built at the first call. Crashes if a description there is invalid:
  // every process that opens a checkpoint does so when it starts.
  static const ArchitectureRegistry& BuiltIn();

  // The architecture that checkpoints of `format` call `spelling`. Valid as long as the registry.
  // Errors: kUnimplemented naming `spelling` and listing the known ones.
  absl::StatusOr<const Architecture*> Find(CheckpointFormat format,
                                           absl::string_view spelling) const;

  // The architecture called `name` (Architecture::name); nullptr if there is none.
  const Architecture* FindByName(absl::string_view name) const;

  const std::vector<Architecture>& architectures() const { return architectures_; }

 private:
  explicit ArchitectureRegistry(std::vector<Architecture> architectures)
      : architectures_(std::move(architectures)) {}

  std::vector<Architecture> architectures_;
};

// Defined in a file that the build generates: the description in each file of families/.
std::vector<Architecture> ListFamilies();

}  // namespace tandem::model
