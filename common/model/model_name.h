// Names of models that are fetched: where a name is on a hub, and where its files are on this disk.
//
//   hf:ORG/NAME[@REVISION][:FILE]   a repository of a Hugging Face hub; FILE: one GGUF file of it
//   https://HOST/PATH.gguf          one GGUF file
//
// Thread safety: plain values and pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::model {

struct ModelName {
  std::string text;  // as given
  // Of a repository.
  std::string org, repository, revision, file;
  std::string url;  // of a file; empty for a repository

  bool is_repository() const { return url.empty(); }
  // The folder of its files below the models folder: one for each name.
  std::string folder() const;
};

// Whether `text` is a name of this kind, and no path or short name.
bool LooksLikeModelName(absl::string_view text);
// Errors: kInvalidArgument, which says what is wrong. Plain http is taken for loopback only.
absl::StatusOr<ModelName> ParseModelName(absl::string_view text);
// Whether `name` may be one file's name: letters, digits, '.', '-', '_', and no dot in front.
bool IsPlainFileName(absl::string_view name);

}  // namespace tandem::model
