// The models that were fetched to this disk. The manifest is written last, so a folder without one
// holds an incomplete model and is not found. Until then the partial manifest says what is there.
// Thread safety: pure functions over the file system.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_name.h"

namespace tandem::model {

struct StoredFile {
  std::string name;
  int64_t bytes = 0;
  std::string sha256;  // as it was when it was fetched
  // What the server called this version of the file; empty: it did not say.
  std::string etag, last_modified;
};

struct StoredModel {
  std::string name;    // as `tandem pull` was given it
  std::string commit;  // of the repository; empty for a file
  std::string folder;
  std::vector<StoredFile> files;

  int64_t bytes() const;
  // What Checkpoint::Open takes: the folder, or its one GGUF file.
  std::string path() const;
};

// TANDEM_MODELS of `env`, else XDG_CACHE_HOME/tandem/models, else HOME/.cache/tandem/models.
std::string ModelsFolder(const std::map<std::string, std::string>& env);

// Marks the model as whole. Errors: kUnavailable when the manifest cannot be written.
absl::Status WriteManifest(const StoredModel& model);
// Marks the model as incomplete; `files`: those that are there. Errors: as WriteManifest.
absl::Status WritePartialManifest(const StoredModel& model);
// The files of the last manifest, partial or not, wherever they are now. Their names are plain.
std::vector<StoredFile> FilesFetched(const std::string& folder);
// Errors: kNotFound when the folder holds no whole model.
absl::StatusOr<StoredModel> ReadManifest(const std::string& folder);
// All whole models below `models_folder`, by name.
std::vector<StoredModel> ListModels(const std::string& models_folder);

}  // namespace tandem::model
