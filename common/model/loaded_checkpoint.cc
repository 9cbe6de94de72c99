#include "common/model/loaded_checkpoint.h"

#include <algorithm>
#include <utility>

#include "common/model/fingerprint.h"

namespace tandem::model {

bool IsTurnEnd(absl::string_view token) {
  for (const absl::string_view name : {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>"}) {
    if (token == name) return true;
  }
  return false;
}

LoadedCheckpoint::LoadedCheckpoint(Parts parts)
    : parts_(std::move(parts)), fingerprint_(Fingerprint(parts_.config, parts_.tensors.tensors())) {
  for (const std::unique_ptr<MappedFile>& file : parts_.files) {
    if (file->modified_ns().has_value()) {
      files_.push_back(
          {file->path(), static_cast<int64_t>(file->bytes().size()), *file->modified_ns()});
    }
  }
  std::vector<int32_t>& ids = parts_.stop_token_ids;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace tandem::model
