#include "common/model/model_store.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;
constexpr char kManifest[] = "manifest.json";

std::string VariableOf(const std::map<std::string, std::string>& env, const std::string& name) {
  const auto found = env.find(name);
  return found == env.end() ? "" : found->second;
}

// A member of the wrong type, or none, is "" or -1.
std::string Text(const nlohmann::json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}
int64_t Number(const nlohmann::json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : -1;
}

}  // namespace

int64_t StoredModel::bytes() const {
  int64_t sum = 0;
  for (const StoredFile& file : files) sum += file.bytes;
  return sum;
}

std::string StoredModel::path() const {
  for (const StoredFile& file : files)
    if (absl::EndsWith(file.name, ".gguf")) return absl::StrCat(folder, "/", file.name);
  return folder;
}

std::string ModelsFolder(const std::map<std::string, std::string>& env) {
  if (std::string folder = VariableOf(env, "TANDEM_MODELS"); !folder.empty()) return folder;
  if (std::string cache = VariableOf(env, "XDG_CACHE_HOME"); !cache.empty())
    return absl::StrCat(cache, "/tandem/models");
  return absl::StrCat(VariableOf(env, "HOME"), "/.cache/tandem/models");
}

absl::Status WriteManifest(const StoredModel& model) {
  nlohmann::json json = {{"name", model.name}, {"commit", model.commit}};
  json["files"] = nlohmann::json::array();
  for (const StoredFile& file : model.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  const std::string path = absl::StrCat(model.folder, "/", kManifest), part = path + ".part";
  std::ofstream out(part, std::ios::binary);
  out << json.dump(2) << "\n";
  out.close();
  std::error_code error;
  if (out) fs::rename(part, path, error);
  return out && !error ? absl::OkStatus()
                       : absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

absl::StatusOr<StoredModel> ReadManifest(const std::string& folder) {
  std::ifstream in(absl::StrCat(folder, "/", kManifest), std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const absl::Status missing = absl::NotFoundError(absl::StrCat(folder, ": holds no whole model"));
  if (!json.is_object() || !json.contains("files") || !json["files"].is_array()) return missing;
  StoredModel model{
      .name = Text(json, "name"), .commit = Text(json, "commit"), .folder = folder, .files = {}};
  for (const nlohmann::json& file : json["files"]) {
    if (!file.is_object()) return missing;
    StoredFile& stored = model.files.emplace_back();
    stored = {Text(file, "name"), Number(file, "bytes"), Text(file, "sha256")};
    std::error_code error;
    const auto bytes = fs::file_size(absl::StrCat(folder, "/", stored.name), error);
    if (!IsPlainFileName(stored.name) || error || static_cast<int64_t>(bytes) != stored.bytes)
      return missing;
  }
  return model;
}

std::vector<StoredModel> ListModels(const std::string& models_folder) {
  std::vector<StoredModel> models;
  std::error_code error;
  for (fs::recursive_directory_iterator it(models_folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename() != kManifest) continue;
    if (auto model = ReadManifest(it->path().parent_path().string()); model.ok())
      models.push_back(*std::move(model));
  }
  std::sort(models.begin(), models.end(),
            [](const StoredModel& a, const StoredModel& b) { return a.name < b.name; });
  return models;
}

}  // namespace tandem::model
