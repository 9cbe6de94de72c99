// A checkpoint's chat template: the Jinja program that turns a conversation into the prompt text
// the model was trained on. Renders what Python's jinja2 renders when configured as Hugging Face
// transformers configures it (immutable sandbox, trim_blocks, lstrip_blocks, loop controls, JSON
// without HTML escapes, `generation` blocks).
//
// A template is an untrusted program that runs on untrusted text. It can access only its variables,
// and TemplateLimits bounds its steps, nesting and output.
//
// Not supported, refused by Parse: include, import, extends, block, recursive loops, translations.
// Not supported, refused where a rendering meets them: the filters filesizeformat, forceescape,
// groupby, pprint, random, striptags, urlize, wordwrap and xmlattr; the tests escaped and module;
// loop.changed; the conversions %c, %e, %g and %o; conversions and attributes in the fields of
// format(); methods of texts other than those in methods.cc. Times are formatted in UTC.
// Thread safety: const methods from any thread. Owner: the model's tokenizer front end.
// Errors: kInvalidArgument with the template's line for bad syntax, a failing operation, a limit,
// or raise_exception (whose message is kept word for word). A message of more than 1 KiB may repeat
// a conversation, so the error tells only its length.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::model {

namespace chat_template {
struct Template;
}

// Bounds of one template and one rendering. The defaults are far above what published templates
// need for a full context: a million-character conversation takes under a million steps.
struct TemplateLimits {
  int64_t source_bytes_max = int64_t{1} << 20;
  // Nested expressions and statements in the source.
  int32_t parse_depth_max = 300;
  // Nested evaluations, macro calls included.
  int32_t evaluation_depth_max = 400;
  // Lists within lists, in the input and in what the template builds.
  int32_t value_depth_max = 200;
  // One for an operation, plus one for every 16 bytes or list element it reads or produces. The
  // text of a list or dict counts one for every 4 bytes.
  int64_t steps_max = 20'000'000;
  // The longest rendering, and the longest string that a template may build.
  int64_t output_bytes_max = int64_t{64} << 20;
};

class ChatTemplate {
 public:
  // The inputs of a rendering. It defines these variables: messages, tools, documents (none when
  // null), add_generation_prompt, bos_token, eos_token and the members of `extra`, which win.
  struct RenderInput {
    nlohmann::ordered_json messages;   // array of {"role": …, "content": …, …}
    nlohmann::ordered_json tools;      // null or an array
    nlohmann::ordered_json documents;  // null or an array
    bool add_generation_prompt = true;
    std::string bos_token;
    std::string eos_token;
    absl::Time now;                // what strftime_now reads
    nlohmann::ordered_json extra;  // null or an object, e.g. {"enable_thinking": false}
    // A lower bound than TemplateLimits::steps_max, where the caller has less time.
    std::optional<int64_t> steps_max;
  };

  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(absl::string_view source,
                                                             const TemplateLimits& limits = {});
  ~ChatTemplate();

  absl::StatusOr<std::string> Render(const RenderInput& input) const;

 private:
  ChatTemplate(std::unique_ptr<chat_template::Template> parsed, const TemplateLimits& limits);

  const std::unique_ptr<chat_template::Template> template_;
  const TemplateLimits limits_;
};

}  // namespace tandem::model
