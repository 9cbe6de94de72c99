// Where a model named on a command line is on disk.
// Thread safety: a pure function over the file system.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::model {

// `name_or_path`: a path to a .gguf file or a directory; a name of a model that `tandem pull`
// fetched (model_name.h); or one of the names that scripts/fetch_model.py knows (smollm2, gemma3).
// Names are looked up in the models folder (model_store.h). Never uses a network. Errors: kNotFound
// naming what was looked for, where, and how to fetch it; kInvalidArgument for a malformed name.
absl::StatusOr<std::string> ResolveModelPath(const std::string& name_or_path,
                                             const std::map<std::string, std::string>& env);

// Whether scripts/fetch_model.py knows a model of this name.
bool IsKnownModel(absl::string_view name);
// How to get a model that IsKnownModel knows, such as "fetch it with ...".
std::string HowToGetKnownModel(absl::string_view name);

// One of the names that scripts/fetch_model.py knows, and its file below `models_folder`.
struct KnownModelFile {
  std::string name;
  std::string path;
};
// Those whose files are there.
std::vector<KnownModelFile> KnownModelsIn(const std::string& models_folder);

// Where weights packed by an earlier start lie when their checkpoint's folder cannot be written:
// XDG_CACHE_HOME/tandem/weights of `env`, else HOME/.cache/tandem/weights; empty without either.
std::string UserWeightsFolder(const std::map<std::string, std::string>& env);

}  // namespace tandem::model
