#include "common/model/model_path.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/environment_value.h"
#include "common/base/status_macros.h"
#include "common/model/model_name.h"
#include "common/model/model_store.h"

namespace tandem::model {
namespace {

struct KnownModel {
  absl::string_view name;
  absl::string_view file;
};
constexpr KnownModel kKnownModels[] = {
    {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"},
    {"gemma3", "gemma-3-270m-q4_k_m.gguf"},
};

}  // namespace

bool IsKnownModel(absl::string_view name) {
  return std::any_of(std::begin(kKnownModels), std::end(kKnownModels),
                     [&](const KnownModel& known) { return known.name == name; });
}

std::string HowToGetKnownModel(absl::string_view name) {
  return absl::StrCat("fetch it with scripts/fetch_model.py ", name,
                      " of Tandem's source tree, or another model with tandem pull hf:ORG/NAME");
}

std::vector<KnownModelFile> KnownModelsIn(const std::string& models_folder) {
  std::vector<KnownModelFile> found;
  std::error_code ignored;
  for (const KnownModel& known : kKnownModels) {
    const std::string path = absl::StrCat(models_folder, "/", known.file);
    if (std::filesystem::is_regular_file(path, ignored))
      found.push_back({std::string(known.name), path});
  }
  return found;
}

std::string UserWeightsFolder(const std::map<std::string, std::string>& env) {
  if (std::string cache = EnvironmentValue(env, "XDG_CACHE_HOME"); !cache.empty()) {
    return absl::StrCat(cache, "/tandem/weights");
  }
  const std::string home = EnvironmentValue(env, "HOME");
  return home.empty() ? "" : absl::StrCat(home, "/.cache/tandem/weights");
}

absl::StatusOr<std::string> ResolveModelPath(const std::string& name_or_path,
                                             const std::map<std::string, std::string>& env) {
  std::error_code ignored;
  if (LooksLikeModelName(name_or_path)) {
    ASSIGN_OR_RETURN(const ModelName name, ParseModelName(name_or_path));
    const std::string folder = absl::StrCat(ModelsFolder(env), "/", name.folder());
    const auto stored = ReadManifest(folder);
    if (stored.ok()) return stored->path();
    return absl::NotFoundError(absl::StrCat(
        "model ", name_or_path, " is not in ", folder, ": fetch it with tandem pull ", name_or_path,
        "; without a network, copy its files (config.json, tokenizer.json, *.safetensors, or one "
        "*.gguf) to a folder and name that"));
  }
  for (const KnownModel& known : kKnownModels) {
    if (known.name != name_or_path) continue;
    const std::string path = absl::StrCat(ModelsFolder(env), "/", known.file);
    if (std::filesystem::exists(path, ignored)) return path;
    return absl::NotFoundError(absl::StrCat("model ", name_or_path, " is not at ", path, ": ",
                                            HowToGetKnownModel(name_or_path)));
  }
  if (std::filesystem::exists(name_or_path, ignored)) return name_or_path;
  return absl::NotFoundError(
      absl::StrCat("model '", name_or_path,
                   "': no such file or directory, and not a known name (smollm2, gemma3, "
                   "hf:ORG/NAME, https://HOST/PATH.gguf)"));
}

}  // namespace tandem::model
