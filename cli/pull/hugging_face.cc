#include "cli/pull/hugging_face.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/environment_value.h"
#include "common/base/status_macros.h"
#include "common/model/hf_checkpoint.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

constexpr char kPublicHub[] = "https://huggingface.co";
constexpr size_t kFilesMax = 4096;
constexpr int64_t kSmallFileMax = int64_t{64} << 20;  // of a file without a hash of its own
// Beside model::kTextFiles; other programs read them.
constexpr std::array<absl::string_view, 2> kOtherFiles = {"special_tokens_map.json",
                                                          "chat_template.json"};

std::string FirstLine(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return std::string(absl::StripAsciiWhitespace(line));
}

std::string TokenOf(const std::map<std::string, std::string>& env) {
  if (std::string token = EnvironmentValue(env, "HF_TOKEN"); !token.empty()) return token;
  if (const std::string path = EnvironmentValue(env, "HF_TOKEN_PATH"); !path.empty())
    return FirstLine(path);
  if (const std::string home = EnvironmentValue(env, "HF_HOME"); !home.empty())
    return FirstLine(home + "/token");
  return FirstLine(EnvironmentValue(env, "HOME") + "/.cache/huggingface/token");
}

bool IsHex(absl::string_view text, size_t length) {
  return text.size() == length && std::all_of(text.begin(), text.end(), absl::ascii_isxdigit);
}

std::string HexMember(const nlohmann::json& object, const char* name, size_t length) {
  const auto it = object.find(name);
  if (it == object.end() || !it->is_string()) return "";
  const auto text = absl::AsciiStrToLower(it->get<std::string>());
  return IsHex(text, length) ? text : "";
}

// One entry of the list; nullopt for one that is of no use here: in a subfolder, or without a size.
std::optional<RepositoryFile> ReadSibling(const nlohmann::json& sibling) {
  if (!sibling.is_object()) return std::nullopt;
  const auto name = sibling.find("rfilename"), size = sibling.find("size");
  if (name == sibling.end() || !name->is_string() || size == sibling.end() ||
      !size->is_number_unsigned())
    return std::nullopt;
  RepositoryFile file{.name = name->get<std::string>(), .remote = {}};
  if (!model::IsPlainFileName(file.name)) return std::nullopt;
  file.remote.bytes = file.remote.bytes_max = size->get<int64_t>();
  const auto lfs = sibling.find("lfs");
  if (lfs != sibling.end() && lfs->is_object())
    file.remote.sha256 = HexMember(*lfs, "sha256", 64);
  else
    file.remote.git_blob = HexMember(sibling, "blobId", 40);
  return file;
}

bool IsNeeded(const RepositoryFile& file) {
  if (absl::EndsWith(file.name, ".safetensors"))
    return file.name == "model.safetensors" || absl::StartsWith(file.name, "model-");
  const auto has = [&](const auto& names) {
    return std::find(names.begin(), names.end(), file.name) != names.end();
  };
  return (has(model::kTextFiles) || has(kOtherFiles)) && file.remote.bytes <= kSmallFileMax;
}

}  // namespace

absl::StatusOr<Hub> Hub::FromEnvironment(const std::map<std::string, std::string>& env) {
  Hub hub{.endpoint = EnvironmentValue(env, "HF_ENDPOINT"), .token = TokenOf(env)};
  if (hub.endpoint.empty()) hub.endpoint = kPublicHub;
  while (absl::EndsWith(hub.endpoint, "/")) hub.endpoint.pop_back();
  // A model's address there has to be one that is fetched.
  const absl::Status status = model::ParseModelName(hub.endpoint + "/x.gguf").status();
  if (status.ok()) return hub;
  return absl::InvalidArgumentError(absl::StrCat("HF_ENDPOINT '", hub.endpoint,
                                                 "': expected https://HOST, or http:// and this "
                                                 "machine"));
}

std::string Hub::host() const {
  const absl::string_view rest = absl::string_view(endpoint).substr(endpoint.find("://") + 3);
  return std::string(rest.substr(0, rest.find('/')));
}

std::string ListUrl(const Hub& hub, const model::ModelName& name) {
  return absl::StrCat(hub.endpoint, "/api/models/", name.org, "/", name.repository, "/revision/",
                      name.revision, "?blobs=true");
}

absl::StatusOr<Repository> ChooseFiles(const Hub& hub, const model::ModelName& name,
                                       const std::string& list) {
  const nlohmann::json json = nlohmann::json::parse(list, nullptr, /*allow_exceptions=*/false);
  Repository repository;
  if (json.is_object()) repository.commit = HexMember(json, "sha", 40);
  if (repository.commit.empty() || !json.contains("siblings") || !json["siblings"].is_array() ||
      json["siblings"].size() > kFilesMax) {
    return absl::InvalidArgumentError(absl::StrCat(ListUrl(hub, name),
                                                   ": expected a model's commit and at most ",
                                                   kFilesMax, " files as JSON"));
  }
  std::vector<RepositoryFile> ggufs;
  bool safetensors = false;
  for (const nlohmann::json& sibling : json["siblings"]) {
    std::optional<RepositoryFile> file = ReadSibling(sibling);
    if (!file.has_value()) continue;
    file->remote.url = absl::StrCat(hub.endpoint, "/", name.org, "/", name.repository, "/resolve/",
                                    repository.commit, "/", file->name);
    if (absl::EndsWith(file->name, ".gguf")) ggufs.push_back(*file);
    if (!name.file.empty() || !IsNeeded(*file)) continue;
    safetensors |= absl::EndsWith(file->name, ".safetensors");
    repository.files.push_back(*std::move(file));
  }
  if (safetensors) return repository;
  repository.files.clear();
  std::vector<std::string> names;
  for (RepositoryFile& gguf : ggufs) {
    names.push_back(gguf.name);
    if (gguf.name == name.file || (name.file.empty() && ggufs.size() == 1))
      repository.files.push_back(std::move(gguf));
  }
  if (!repository.files.empty()) return repository;
  if (ggufs.empty()) {
    return absl::NotFoundError(absl::StrCat(
        name.text, ": has neither safetensors nor GGUF files, which are what can be served"));
  }
  return absl::NotFoundError(absl::StrCat(name.text, ": has the GGUF files ",
                                          absl::StrJoin(names, ", "), "; name one of them, as in ",
                                          "hf:", name.org, "/", name.repository, ":", names[0]));
}

}  // namespace tandem::cli
