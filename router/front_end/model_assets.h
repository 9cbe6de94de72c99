// What a router needs of the model: its identity, tokenizer and chat template, no weights.
// Thread safety: immutable after Load.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/guided/constraint_cache.h"
#include "common/model/chat_template/chat_template.h"
#include "common/model/tokenizer/tokenizer.h"
#include "router/fleet/model_identity.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

struct ModelAssets {
  ModelIdentity identity;
  std::string architecture;
  std::vector<TokenId> eos_token_ids;
  std::unique_ptr<model::Tokenizer> tokenizer;
  // Checks that a constraint on an answer compiles. Not null; safe from any thread.
  std::unique_ptr<guided::ConstraintChecker> constraints;
  std::unique_ptr<model::ChatTemplate> chat_template;  // null when the model has none
  std::string chat_template_source;                    // its text; empty when the model has none
  // Why the text cannot be used. Then chat_template is null.
  absl::Status chat_template_fault;
  // The same for conversations with tools. Null without a fault: chat_template is for them, too.
  std::unique_ptr<model::ChatTemplate> tool_chat_template;
  absl::Status tool_chat_template_fault;
  // Whether the template takes few steps for a conversation that fits into a request of
  // LongWork::kShortBytesMax. Then such a conversation is rendered on the thread that read it, in
  // kShortRenderStepsMax at most; otherwise every one is, as longer ones are, on the threads for
  // long work.
  bool renders_shortly = true;
  static constexpr int64_t kShortRenderStepsMax = 500'000;  // some 20 ms

  // Whether a conversation with tools shows the model their names.
  bool shows_tools = false;
  // Whether chat_template and tool_chat_template take short ids of calls only; see call_ids.h.
  bool needs_short_ids = false, tool_needs_short_ids = false;

  // A text of more bytes never fits into the context, so it is refused without being tokenized.
  int64_t prompt_bytes_max = 0;

  // From a checkpoint on disk. A chat template that cannot be used is no error.
  static absl::StatusOr<std::unique_ptr<ModelAssets>> Load(const std::string& checkpoint_path);
  // For hash-engine clusters: bytes as tokens, the identity that their nodes register.
  static absl::StatusOr<std::unique_ptr<ModelAssets>> ForHashEngine();

  // Takes this text in place of the model's own templates. kInvalidArgument: it cannot be used.
  absl::Status UseChatTemplate(std::string source);
  // Sets what is known of the templates by rendering with them: renders_shortly with the most
  // messages that a short request can have, then shows_tools and which ids of calls they take. A
  // template may take kShortTrialStepsMax for each, so that other conversations have room below the
  // bound.
  void TryChatTemplate();
  static constexpr int64_t kShortTrialStepsMax = 200'000;

  // kInvalidArgument for a conversation of more messages than the context has tokens: each has one
  // at least. To be asked before the messages are read.
  absl::Status CheckMessages(int64_t messages) const;
  // The conversation as prompt text. kInvalidArgument when the template refuses it, cannot be used,
  // or there is none.
  absl::StatusOr<std::string> RenderChat(const v1::ChatMessages& chat, absl::Time now) const;
  // The same of messages, tools and template parameters that a front end has read; the rest of
  // `input` is filled in.
  absl::StatusOr<std::string> RenderChat(model::ChatTemplate::RenderInput input,
                                         absl::Time now) const;
};

}  // namespace tandem::router
