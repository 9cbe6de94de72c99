#include "common/model/model_store.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;
constexpr char kManifest[] = "manifest.json", kPartial[] = "partial.json";

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

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// nullopt: it is no manifest.
std::optional<StoredModel> ParseManifest(const nlohmann::json& json, const std::string& folder) {
  if (!json.is_object() || !json.contains("files") || !json["files"].is_array())
    return std::nullopt;
  StoredModel model{
      .name = Text(json, "name"), .commit = Text(json, "commit"), .folder = folder, .files = {}};
  for (const nlohmann::json& file : json["files"]) {
    if (!file.is_object() || !IsPlainFileName(Text(file, "name"))) return std::nullopt;
    model.files.push_back({.name = Text(file, "name"),
                           .bytes = Number(file, "bytes"),
                           .sha256 = Text(file, "sha256"),
                           .etag = Text(file, "etag"),
                           .last_modified = Text(file, "last_modified")});
  }
  return model;
}

// Then `other`, a manifest of the other kind, no longer holds.
absl::Status Write(const StoredModel& model, const char* name, const char* other) {
  nlohmann::json json = {{"name", model.name}, {"commit", model.commit}};
  json["files"] = nlohmann::json::array();
  for (const StoredFile& file : model.files) {
    json["files"].push_back({{"name", file.name},
                             {"bytes", file.bytes},
                             {"sha256", file.sha256},
                             {"etag", file.etag},
                             {"last_modified", file.last_modified}});
  }
  const std::string path = absl::StrCat(model.folder, "/", name), part = path + ".part";
  std::ofstream out(part, std::ios::binary);
  out << json.dump(2) << "\n";
  out.close();
  std::error_code error;
  if (out) fs::rename(part, path, error);
  if (out && !error) fs::remove(absl::StrCat(model.folder, "/", other), error);
  return out && !error ? absl::OkStatus()
                       : absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
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

absl::Status WriteManifest(const StoredModel& model) { return Write(model, kManifest, kPartial); }
absl::Status WritePartialManifest(const StoredModel& model) {
  return Write(model, kPartial, kManifest);
}

absl::StatusOr<StoredModel> ReadManifest(const std::string& folder) {
  const absl::Status missing = absl::NotFoundError(absl::StrCat(folder, ": holds no whole model"));
  std::optional<StoredModel> model =
      ParseManifest(ReadJson(absl::StrCat(folder, "/", kManifest)), folder);
  if (!model.has_value()) return missing;
  for (const StoredFile& stored : model->files) {
    std::error_code error;
    const auto bytes = fs::file_size(absl::StrCat(folder, "/", stored.name), error);
    if (error || static_cast<int64_t>(bytes) != stored.bytes) return missing;
  }
  return *std::move(model);
}

std::vector<StoredFile> FilesFetched(const std::string& folder) {
  // Where both are there, a process ended before it removed the older one, which says the same or
  // less.
  for (const char* name : {kManifest, kPartial}) {
    if (auto model = ParseManifest(ReadJson(absl::StrCat(folder, "/", name)), folder))
      return std::move(model->files);
  }
  return {};
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
