// Goal: integers of more than 64 bits in a conversation or a tool are, in templates, what they are
// in Python as far as 128 bits hold them, and numbers beyond.
#include <gmock/gmock.h>

#include <string>

#include "common/model/chat_template/chat_template.h"
#include "tests/testing/status_matchers.h"

namespace tandem::model {
namespace {

TEST(ChatTemplateNumbers, LargeIntegersKeepTheirDigits) {
  const auto parsed =
      ChatTemplate::Parse("{% for m in messages %}{{ m | tojson }} {{ m[0] - 1 }};{% endfor %}");
  ASSERT_OK(parsed.status());
  const auto digits = [](const std::string& text) {
    return nlohmann::ordered_json::binary({text.begin(), text.end()}, 1);
  };
  ChatTemplate::RenderInput input;
  input.messages = nlohmann::ordered_json::array();
  input.messages.push_back({digits("123456789012345678901234567890")});
  input.messages.push_back({digits("-18446744073709551617")});
  input.messages.push_back({digits("1" + std::string(40, '0'))});
  EXPECT_EQ((*parsed)->Render(input).value(),
            "[123456789012345678901234567890] 123456789012345678901234567889;"
            "[-18446744073709551617] -18446744073709551618;[1e+40] 1e+40;");
}

}  // namespace
}  // namespace tandem::model
