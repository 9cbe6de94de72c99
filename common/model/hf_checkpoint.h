// Opens a Hugging Face directory as a Checkpoint: config.json, safetensors (single or sharded) with
// the scales of fp8 tensors, and the files of the tokenizer and the chat template.
// Thread safety: functions without shared state; the result as Checkpoint.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/checkpoint.h"

namespace tandem::model {

inline constexpr absl::string_view kConfigFile = "config.json";
inline constexpr absl::string_view kGenerationConfigFile = "generation_config.json";
inline constexpr absl::string_view kTokenizerFile = "tokenizer.json";
inline constexpr absl::string_view kTokenizerConfigFile = "tokenizer_config.json";
inline constexpr absl::string_view kChatTemplateFile = "chat_template.jinja";
inline constexpr absl::string_view kModelOptFile = "hf_quant_config.json";
inline constexpr absl::string_view kShardIndexFile = "model.safetensors.index.json";
// All files that OpenHuggingFaceCheckpoint reads beside those with tensors.
inline constexpr std::array kTextFiles = {
    kConfigFile,       kGenerationConfigFile, kTokenizerFile, kTokenizerConfigFile,
    kChatTemplateFile, kModelOptFile,         kShardIndexFile};

// Errors: as Checkpoint::Open; each names the file.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenHuggingFaceCheckpoint(const std::string& folder);

}  // namespace tandem::model
