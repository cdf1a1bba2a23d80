// The rotary settings of a file: ConfigReader::rope() and what it is made of.

#include <algorithm>

#include "arch/config.h"
#include "trace/trace.h"

namespace cutaway::arch {

namespace {

std::string theta_key(const Metadata& metadata, const std::string& section) {
  return metadata.has(section + "rope_theta") ? section + "rope_theta" : "rope_theta";
}

}  // namespace

std::string ConfigReader::rope_section(const RopeKeys& keys) const {
  CUTAWAY_SPAN(span, "arch::ConfigReader::rope_section", "section", keys.hugging_face_section);
  std::string part = "rope_parameters.";
  const std::string section = keys.hugging_face_section;
  if (!section.empty() && metadata_.has(part + section + ".rope_theta")) part += section + ".";
  if (gguf_ || !(metadata_.has(part + "rope_type") || metadata_.has(part + "rope_theta"))) {
    part = "rope_scaling.";
  }
  CUTAWAY_OUT(span, "keys", part);
  return part;
}

Result<ops::RopeConfig> ConfigReader::rope(int64_t d_head, const RopeKeys& keys) const {
  CUTAWAY_SPAN(span, "arch::ConfigReader::rope", "d_head", d_head);
  ops::RopeConfig config;
  const std::string section = rope_section(keys);
  const auto wrong = [](const std::string& key, double value, const char* expected) {
    return Error{ErrorCode::kInvalidFile,
                 "metadata " + key + " is " + std::to_string(value) + ", expected " + expected,
                 key};
  };
  const std::string share_key = metadata_.has(section + "partial_rotary_factor")
                                    ? section + "partial_rotary_factor"
                                    : "partial_rotary_factor";
  if (!gguf_ && metadata_.has(share_key)) {
    CUTAWAY_ASSIGN(const double share, metadata_.number(share_key));
    if (!(share > 0 && share <= 1)) return wrong(share_key, share, "a number in (0, 1]");
    config.n_rot = static_cast<int64_t>(static_cast<double>(d_head) * share);
    if (config.n_rot < 2 || config.n_rot % 2 != 0) {
      return wrong(share_key, share, "a share that rotates an even number of elements");
    }
  } else {
    CUTAWAY_ASSIGN(config.n_rot,
                   integer_or("rope.dimension_count", "rotary_dim", d_head, 2, d_head));
    if (config.n_rot % 2 != 0) {
      return wrong(key("rope.dimension_count", "rotary_dim"), static_cast<double>(config.n_rot),
                   "an even number");
    }
  }
  const std::string base = theta_key(metadata_, section);
  CUTAWAY_ASSIGN(config.theta, positive_or("rope.freq_base", base, keys.theta));
  if (config.theta <= 1) {
    return wrong(key("rope.freq_base", base), config.theta, "a number above 1");
  }
  CUTAWAY_TRY(read_scaling(section, keys, config));
  CUTAWAY_OUT(span, "n_rot", config.n_rot, "theta", config.theta, "scaling",
              static_cast<int>(config.scaling), "factor", config.factor);
  return config;
}

Status ConfigReader::read_scaling(const std::string& section, const RopeKeys& keys,
                                  ops::RopeConfig& config) const {
  CUTAWAY_SPAN(span, "arch::ConfigReader::read_scaling", "section", section);
  std::string type_key = key("rope.scaling.type", section + "rope_type");
  if (!gguf_ && !metadata_.has(type_key)) {  // older configurations say `type`
    if (metadata_.has(section + "type")) type_key = section + "type";
  }
  CUTAWAY_ASSIGN(const std::string type, metadata_.string_or(type_key, "none"));
  if (type == "linear" || type == "yarn") {
    config.scaling = type == "linear" ? ops::RopeScaling::kLinear : ops::RopeScaling::kYarn;
    CUTAWAY_ASSIGN(config.factor, positive("rope.scaling.factor", section + "factor"));
  } else if (keys.long_factors && (type == "longrope" || type == "su")) {
    config.scaling = ops::RopeScaling::kLongRope;
  } else if (type == "none" || type == "default") {
    CUTAWAY_TRY(refuse_scaling_without_type(type_key, section));
  } else {
    return Error{ErrorCode::kUnsupported,
                 "metadata " + type_key + " is \"" + type +
                     "\"; this version knows none, linear, yarn, " +
                     (keys.long_factors ? "longrope, " : "") + "and Llama 3's rope_freqs tensor",
                 type_key};
  }
  if (config.scaling == ops::RopeScaling::kYarn) {
    CUTAWAY_ASSIGN(config.original_context, positive("rope.scaling.original_context_length",
                                                     section + "original_max_position_embeddings"));
    CUTAWAY_ASSIGN(config.beta_fast, positive_or("rope.scaling.yarn_beta_fast",
                                                 section + "beta_fast", config.beta_fast));
    CUTAWAY_ASSIGN(config.beta_slow, positive_or("rope.scaling.yarn_beta_slow",
                                                 section + "beta_slow", config.beta_slow));
    if (has("rope.scaling.yarn_attn_factor", section + "attention_factor")) {
      CUTAWAY_ASSIGN(config.attention_factor,
                     positive("rope.scaling.yarn_attn_factor", section + "attention_factor"));
    }
  }
  if (config.scaling == ops::RopeScaling::kLongRope && !gguf_) {
    for (const bool is_long : {false, true}) {
      const std::string name = section + (is_long ? "long_factor" : "short_factor");
      CUTAWAY_ASSIGN(const std::vector<double> factors, metadata_.numbers(name));
      std::vector<float>& to = is_long ? config.long_divisors : config.divisors;
      for (const double factor : factors) to.push_back(static_cast<float>(factor));
      const bool good = std::all_of(to.begin(), to.end(), [](float f) { return f > 0; });
      if (static_cast<int64_t>(to.size()) != config.n_rot / 2 || !good) {
        return Error{ErrorCode::kInvalidFile,
                     "metadata " + name + " has " + std::to_string(to.size()) +
                         " values, expected " + std::to_string(config.n_rot / 2) +
                         ", all above 0: one for each rotated pair",
                     name};
      }
    }
  }
  CUTAWAY_OUT(span, "type", type);
  return {};
}

// A factor that nothing says how to apply: other readers take linear scaling for it.
Status ConfigReader::refuse_scaling_without_type(const std::string& type_key,
                                                 const std::string& section) const {
  CUTAWAY_SPAN(span, "arch::ConfigReader::refuse_scaling_without_type", "key", type_key);
  if (metadata_.has(type_key)) return {};
  for (const char* gguf : {"rope.scaling.factor", "rope.scale_linear"}) {
    const std::string factor_key = key(gguf, section + "factor");
    CUTAWAY_ASSIGN(const double factor, metadata_.number_or(factor_key, 1));
    if (factor == 1 || factor == 0) continue;  // 0 is how writers say that there is none
    return Error{ErrorCode::kUnsupported,
                 "metadata " + factor_key + " is " + std::to_string(factor) + ", but " + type_key +
                     " is not there: add it (linear or yarn; none to leave the factor out)",
                 type_key};
  }
  return {};
}

Status ConfigReader::finish_long_rope(ops::RopeConfig& rope) const {
  CUTAWAY_SPAN(span, "arch::ConfigReader::finish_long_rope", "n_rot", rope.n_rot);
  rope.scaling = ops::RopeScaling::kLongRope;
  const std::string section = rope_section({});
  const std::string in_section = section + "original_max_position_embeddings";
  const std::string original_key =
      metadata_.has(in_section) ? in_section : "original_max_position_embeddings";
  CUTAWAY_ASSIGN(rope.original_context,
                 positive("rope.scaling.original_context_length", original_key));
  if (has("rope.scaling.attn_factor", section + "attention_factor")) {
    CUTAWAY_ASSIGN(rope.attention_factor,
                   positive("rope.scaling.attn_factor", section + "attention_factor"));
  } else {
    CUTAWAY_ASSIGN(const double context, positive("context_length", "max_position_embeddings"));
    CUTAWAY_ASSIGN(const double scale, positive_or("rope.scaling.factor", section + "factor",
                                                   context / rope.original_context));
    rope.attention_factor = ops::long_rope_factor(scale, rope.original_context);
  }
  CUTAWAY_OUT(span, "original_context", rope.original_context, "attention_factor",
              rope.attention_factor);
  return {};
}

}  // namespace cutaway::arch
