#include "common/model/checkpoint.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/gguf_checkpoint.h"
#include "common/model/hf_checkpoint.h"
#include "common/model/mapped_file.h"

namespace tandem::model {

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return OpenHuggingFaceCheckpoint(path);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = OpenGgufCheckpoint(std::move(file));
  if (!checkpoint.ok()) {
    return absl::Status(checkpoint.status().code(),
                        absl::StrCat(path, ": ", checkpoint.status().message()));
  }
  return checkpoint;
}

}  // namespace tandem::model
