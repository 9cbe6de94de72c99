// A Hugging Face hub: what a repository holds, and where its files are.
// Source of the formats: the hub's HTTP API, GET /api/models/ORG/NAME/revision/REV?blobs=true, and
// /ORG/NAME/resolve/COMMIT/FILE.
// Thread safety: pure functions of the environment and the answer.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/pull/download.h"
#include "common/model/model_name.h"

namespace tandem::cli {

struct Hub {
  std::string endpoint;  // without a slash at its end
  std::string token;     // may be empty

  // HF_ENDPOINT, else the public hub. The token is HF_TOKEN, or in the file HF_TOKEN_PATH,
  // HF_HOME/token, or ~/.cache/huggingface/token. Errors: kInvalidArgument for an endpoint that is
  // neither https nor on this machine.
  static absl::StatusOr<Hub> FromEnvironment(const std::map<std::string, std::string>& env);
  std::string host() const;  // with its port
};

struct RepositoryFile {
  std::string name;
  RemoteFile remote;
};

struct Repository {
  std::string commit;
  std::vector<RepositoryFile> files;  // that serving the model needs
};

std::string ListUrl(const Hub& hub, const model::ModelName& name);
// Chooses of the hub's list: the file that `name` names; else config.json, the tokenizer, the chat
// template and all safetensors; else the one GGUF file of a repository without those.
// Errors: kInvalidArgument for an answer of another form; kNotFound when the model has no file that
// can be served, or several GGUF files of which `name` names none, which it lists.
absl::StatusOr<Repository> ChooseFiles(const Hub& hub, const model::ModelName& name,
                                       const std::string& list);

}  // namespace tandem::cli
