#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <regex>

#include "base/suggest.h"
#include "formats/quantize_row.h"
#include "formats/sniff.h"
#include "model/quantization.h"
#include "trace/trace.h"

// Which tensor of a mix gets how many bits follows llama.cpp's choices, so that a Q4_K_M here has
// the size and the tensors of a Q4_K_M there.

namespace cutaway::model {
namespace {

constexpr QuantizationRecipe kRecipes[] = {
    {"F32", DType::kF32, 0, "32-bit floats"},
    {"F16", DType::kF16, 1, "half precision"},
    {"BF16", DType::kBF16, 32, "bfloat16"},
    {"Q8_0", DType::kQ8_0, 7, "8.5 bits a weight, next to no loss"},
    {"Q6_K", DType::kQ6_K, 18, "6.6 bits"},
    {"Q5_K_M", DType::kQ5_K, 17, "5.7 bits: Q5_K, Q6_K where it counts"},
    {"Q5_K_S", DType::kQ5_K, 16, "5.5 bits: Q5_K"},
    {"Q5_1", DType::kQ5_1, 9, "6 bits"},
    {"Q5_0", DType::kQ5_0, 8, "5.5 bits"},
    {"Q4_K_M", DType::kQ4_K, 15, "4.8 bits: Q4_K, Q6_K where it counts"},
    {"Q4_K_S", DType::kQ4_K, 14, "4.6 bits: Q4_K, Q5_K where it counts"},
    {"IQ4_NL", DType::kIQ4_NL, 25, "4.5 bits, unevenly spaced"},
    {"IQ4_XS", DType::kIQ4_XS, 30, "4.25 bits, unevenly spaced"},
    {"Q4_1", DType::kQ4_1, 3, "5 bits"},
    {"Q4_0", DType::kQ4_0, 2, "4.5 bits"},
    {"MXFP4", DType::kMXFP4, 38, "4.25 bits, powers of two as scales"},
    {"MXFP4_MOE", DType::kMXFP4, 38, "experts in MXFP4, the rest in Q8_0"},
    {"Q3_K_L", DType::kQ3_K, 13, "4.2 bits: Q3_K, Q5_K where it counts"},
    {"Q3_K_M", DType::kQ3_K, 12, "3.9 bits: Q3_K, Q4_K where it counts"},
    {"Q3_K_S", DType::kQ3_K, 11, "3.5 bits: Q3_K"},
    {"Q2_K", DType::kQ2_K, 10, "3.2 bits: Q2_K, Q3_K where it counts"},
    {"Q2_K_S", DType::kQ2_K, 21, "2.8 bits: Q2_K, Q4_K where it counts"},
};

enum class Role : uint8_t {
  kOutput,
  kEmbedding,
  kQkv,
  kV,
  kK,
  kQ,
  kAttnOut,
  kUp,
  kGate,
  kDown,
  kOther
};

Role role_of(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (name == "output.weight") return Role::kOutput;
  if (name == "token_embd.weight" || name == "per_layer_token_embd.weight") return Role::kEmbedding;
  if (has("attn_qkv.weight")) return Role::kQkv;
  if (has("attn_v.weight") || has("attn_kv_b.weight")) return Role::kV;
  if (has("attn_k.weight")) return Role::kK;
  if (has("attn_q.weight")) return Role::kQ;
  if (has("attn_output.weight")) return Role::kAttnOut;
  if (has("ffn_up")) return Role::kUp;
  if (has("ffn_gate")) return Role::kGate;
  if (has("ffn_down")) return Role::kDown;
  return Role::kOther;
}

bool like_v(Role role) { return role == Role::kV || role == Role::kQkv; }

// −1: not of a layer.
int64_t layer_of(std::string_view name) {
  if (!name.starts_with("blk.")) return -1;
  int64_t layer = -1;
  const auto parsed = std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return parsed.ec == std::errc() ? layer : -1;
}

// Matrices, but for those that are small or that routing and positions hang on.
bool is_quantizable(const StoredTensor& tensor) {
  const std::string_view name = tensor.name;
  if (tensor.shape.rank() < 2 || tensor.dtype == DType::kI32 || !name.ends_with("weight"))
    return false;
  for (const char* kept :
       {"_norm.weight", "ffn_gate_inp.weight", "position_embd", "token_types", "ssm_conv1d",
        "shortconv.conv.weight", "attn_rel_b.weight", "altup", "laurel", "per_layer_model_proj"}) {
    if (name.find(kept) != std::string_view::npos) return false;
  }
  return true;
}

// What the choice of types looks at in a model.
struct Facts {
  int64_t layers = 0, gqa = 1, experts = 0;
  int64_t v_tensors = 0;  // attn_v and what holds it
  bool tied = true;       // the head is the embedding
  std::string architecture;
};

// The first of an array; a key that is absent or of another kind gives the fallback.
int64_t integer_of(const Metadata& metadata, const std::string& key, int64_t fallback) {
  const auto one = metadata.integer(key, 0, INT32_MAX);
  if (one.ok()) return *one;
  const auto many = metadata.integers(key);
  return many.ok() && !many->empty() ? many->front() : fallback;
}

Facts facts_of(const ModelFile& file) {
  Facts out;
  const auto architecture = file.metadata.string_or("general.architecture", "");
  out.architecture = architecture.ok() ? *architecture : "";
  const std::string prefix = out.architecture + ".";
  out.layers = integer_of(file.metadata, prefix + "block_count", 0);
  out.experts = integer_of(file.metadata, prefix + "expert_count", 0);
  const int64_t heads = integer_of(file.metadata, prefix + "attention.head_count", 1);
  const int64_t kv_heads = integer_of(file.metadata, prefix + "attention.head_count_kv", heads);
  out.gqa = kv_heads > 0 ? heads / kv_heads : 1;
  for (const StoredTensor& tensor : file.tensors) {
    const Role role = role_of(tensor.name);
    out.v_tensors += like_v(role) ? 1 : 0;
    if (role == Role::kOutput) out.tied = false;
  }
  return out;
}

// The layers that mixes spend more bits on: the first and last eighth, and every third between.
bool counts_more(int64_t i, int64_t n) {
  return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

class Chooser {
 public:
  Chooser(const QuantizationOptions& options, const Facts& facts)
      : name_(options.recipe.name),
        base_(options.recipe.type),
        facts_(facts),
        has_importance_(options.importance != nullptr) {}

  // `v_index`: how many attn_v-like tensors of lower layers there are.
  DType choose(const StoredTensor& tensor, int64_t v_index) const {
    const Role role = role_of(tensor.name);
    const int64_t layer = layer_of(tensor.name);
    if (role == Role::kOutput || (role == Role::kEmbedding && facts_.tied)) return head(tensor);
    if (is("MXFP4_MOE")) return tensor.shape.rank() > 2 ? DType::kMXFP4 : DType::kQ8_0;
    if (like_v(role)) return values(v_index, role);
    if (role == Role::kK && facts_.experts == 8 && is_k_mix()) return DType::kQ8_0;
    if (role == Role::kDown) return down(layer);
    if (role == Role::kAttnOut) return attention_output();
    return base_;
  }

 private:
  bool is(std::string_view name) const { return name_ == name; }
  bool is_k_mix() const {
    return base_ != DType::kF32 && base_ != DType::kF16 && base_ != DType::kBF16;
  }

  DType head(const StoredTensor& tensor) const {
    if (is("MXFP4_MOE")) return DType::kQ8_0;
    const int64_t columns = tensor.shape[tensor.shape.rank() - 1];
    if (columns % dtype_traits(base_).block_elements != 0) return DType::kQ8_0;
    return base_ == DType::kQ8_0 ? base_ : DType::kQ6_K;
  }

  DType values(int64_t i, Role role) const {
    DType out = base_;
    if (is("Q2_K")) out = facts_.gqa >= 4 ? DType::kQ4_K : DType::kQ3_K;
    if (is("Q2_K_S") && facts_.gqa >= 4) out = DType::kQ4_K;
    if (is("Q3_K_M")) out = i < 2 ? DType::kQ5_K : DType::kQ4_K;
    if (is("Q3_K_L")) out = DType::kQ5_K;
    if ((is("IQ4_NL") || is("IQ4_XS")) && facts_.gqa >= 4) out = DType::kQ5_K;
    if ((is("Q4_K_M") || is("Q5_K_M")) && counts_more(i, facts_.v_tensors)) out = DType::kQ6_K;
    if (is("Q4_K_S") && i < 4) out = DType::kQ5_K;
    // Models of 80 layers share each v among eight heads: it is small, and counts.
    if (facts_.layers == 80 && (out == DType::kQ3_K || out == DType::kQ4_K)) out = DType::kQ5_K;
    if (facts_.experts == 8) out = DType::kQ8_0;
    return out;
  }

  DType down(int64_t layer) const {
    const int64_t n = facts_.layers;
    if (is("Q2_K")) return DType::kQ3_K;
    if (is("Q2_K_S") && layer < n / 8) return DType::kQ4_K;
    if (is("Q3_K_M")) return layer < n / 16 ? DType::kQ5_K : DType::kQ4_K;
    if (is("Q3_K_L")) return DType::kQ5_K;
    if ((is("Q4_K_M") || is("Q5_K_M")) && counts_more(layer, n)) return DType::kQ6_K;
    if ((is("IQ4_NL") || is("IQ4_XS")) && layer < n / 8 && !has_importance_) return DType::kQ5_K;
    if (is("Q4_K_S") && layer < n / 8) return DType::kQ5_K;
    if (is("Q4_0") && layer < n / 8 && has_importance_) return DType::kQ4_1;
    if (is("Q5_0") && layer < n / 8 && has_importance_) return DType::kQ5_1;
    return base_;
  }

  DType attention_output() const {
    if (facts_.experts == 8) {
      for (const char* name :
           {"Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS"}) {
        if (is(name)) return DType::kQ5_K;
      }
      return base_;
    }
    if (is("Q2_K")) return DType::kQ3_K;
    if (is("Q3_K_M")) return DType::kQ4_K;
    if (is("Q3_K_L")) return DType::kQ5_K;
    return base_;
  }

  std::string_view name_;
  DType base_;
  const Facts& facts_;
  bool has_importance_;
};

struct Pattern {
  std::regex expression;
  const TypeOverride* asked;
  bool used = false;
};

Result<std::vector<Pattern>> compile(const std::vector<TypeOverride>& overrides) {
  std::vector<Pattern> out;
  for (const TypeOverride& asked : overrides) {
    try {
      out.push_back({std::regex(asked.pattern), &asked});
    } catch (const std::regex_error& error) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("tensor type: '{}' is no regular expression ({}); it is looked for "
                               "in the tensors' names, like ffn_down or blk\\.0\\.",
                               asked.pattern, error.what()),
                   "tensor-type"};
    }
  }
  return out;
}

bool is_quantized(DType type) { return dtype_traits(type).block_elements > 1; }

int64_t columns_of(const StoredTensor& tensor) { return tensor.shape[tensor.shape.rank() - 1]; }

Status check_importance(const StoredTensor& tensor, const formats::Importance& importance) {
  const int64_t stacked = tensor.shape.rank() > 2 ? tensor.shape[0] : 1;
  const auto found = static_cast<int64_t>(importance.values.size());
  if (found == columns_of(tensor) * stacked) return {};
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("imatrix: {} has {} numbers, the tensor has {} columns{}: it was "
                           "measured on another model",
                           formats::in_quotes(tensor.name), found, columns_of(tensor),
                           stacked > 1 ? fmt::format(" of {} matrices", stacked) : ""),
               "imatrix"};
}

}  // namespace

uint64_t PlannedTensor::bytes() const {
  return dtype_bytes(type, static_cast<size_t>(source->shape.elements()));
}

uint64_t QuantizationPlan::bytes() const {
  uint64_t sum = 0;
  for (const PlannedTensor& tensor : tensors) sum += tensor.bytes();
  return sum;
}

std::span<const QuantizationRecipe> quantization_recipes() { return kRecipes; }

namespace {

std::string upper_case(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

Error unknown(const char* field, const std::string& value, const std::vector<std::string>& known) {
  const std::string near = nearest_word(upper_case(value), known);
  return {ErrorCode::kInvalidArgument,
          fmt::format("there is no type '{}'{} (types: {})", value,
                      near.empty() ? "" : fmt::format("; did you mean '{}'?", near),
                      fmt::join(known, ", ")),
          field};
}

}  // namespace

Result<QuantizationRecipe> find_recipe(const std::string& name) {
  CUTAWAY_SPAN(span, "model::find_recipe", "name", name);
  std::string wanted = upper_case(name);
  if (wanted == "Q3_K" || wanted == "Q4_K" || wanted == "Q5_K") wanted += "_M";
  std::vector<std::string> names;
  for (const QuantizationRecipe& recipe : kRecipes) {
    if (wanted == recipe.name) return recipe;
    names.emplace_back(recipe.name);
  }
  return unknown("type", name, names);
}

Result<DType> find_quantized_type(const std::string& name) {
  CUTAWAY_SPAN(span, "model::find_quantized_type", "name", name);
  std::vector<std::string> names;
  for (const DType type : formats::row_types()) {
    if (upper_case(name) == dtype_name(type)) return type;
    names.emplace_back(dtype_name(type));
  }
  return unknown("tensor-type", name, names);
}

namespace {

class Planner {
 public:
  Planner(const ModelFile& file, const QuantizationOptions& options, std::vector<Pattern> patterns)
      : options_(options),
        facts_(facts_of(file)),
        chooser_(options, facts_),
        patterns_(std::move(patterns)) {
    for (const StoredTensor& tensor : file.tensors) {
      if (like_v(role_of(tensor.name))) v_layers_.push_back(layer_of(tensor.name));
    }
    std::sort(v_layers_.begin(), v_layers_.end());
  }

  Result<PlannedTensor> plan(const StoredTensor& tensor) {
    PlannedTensor out{&tensor, tensor.dtype};
    if (!is_quantizable(tensor)) return out;
    if (const TypeOverride* asked = asked_for(tensor)) {
      CUTAWAY_TRY(check_rows(tensor, asked->type));
      out.type = asked->type;
    } else {
      const DType wanted = wanted_type(tensor);
      out.type = formats::fitting_type(wanted, columns_of(tensor));
      out.fell_back = out.type != wanted;
    }
    if (out.type == tensor.dtype || !is_quantized(out.type)) return out;
    if (is_quantized(tensor.dtype) && !options_.allow_requantize) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("{} is {} already, and {} would lose once more; begin with an F16, "
                               "BF16 or F32 file, or say --allow-requantize",
                               formats::in_quotes(tensor.name), dtype_name(tensor.dtype),
                               dtype_name(out.type)),
                   "allow-requantize"};
    }
    CUTAWAY_TRY(add_importance(tensor, out));
    return out;
  }

  // What was asked for and found nowhere; what people should know.
  Status finish(QuantizationPlan& plan) const {
    for (const Pattern& pattern : patterns_) {
      if (pattern.used) continue;
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("tensor type: no matrix has '{}' in its name; `cutaway info "
                               "--tensors` lists them",
                               pattern.asked->pattern),
                   "tensor-type"};
    }
    const auto fallen = std::count_if(plan.tensors.begin(), plan.tensors.end(),
                                      [](const PlannedTensor& t) { return t.fell_back; });
    if (fallen > 0) {
      plan.warnings.push_back(fmt::format(
          "{} of {} tensors have rows that the blocks of their type do not divide: they get one of "
          "smaller blocks and about as many bits",
          fallen, plan.tensors.size()));
    }
    if (options_.importance == nullptr || without_importance_ == 0) return {};
    if (with_importance_ == 0) {
      return Error{ErrorCode::kInvalidArgument,
                   "imatrix: it knows none of the tensors that are quantised; it was measured on "
                   "another model",
                   "imatrix"};
    }
    plan.warnings.push_back(fmt::format(
        "{} of {} quantised tensors of the layers have no importance: their columns count alike",
        without_importance_, without_importance_ + with_importance_));
    return {};
  }

 private:
  const TypeOverride* asked_for(const StoredTensor& tensor) {
    const TypeOverride* first = nullptr;
    for (Pattern& pattern : patterns_) {
      if (!std::regex_search(tensor.name, pattern.expression)) continue;
      pattern.used = true;
      if (first == nullptr) first = pattern.asked;
    }
    return first;
  }

  static Status check_rows(const StoredTensor& tensor, DType type) {
    const int64_t columns = columns_of(tensor);
    if (columns % dtype_traits(type).block_elements == 0) return {};
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("tensor type: {} has rows of {}, and {} has blocks of {}; {} would fit",
                    formats::in_quotes(tensor.name), columns, dtype_name(type),
                    dtype_traits(type).block_elements,
                    dtype_name(formats::fitting_type(type, columns))),
        "tensor-type"};
  }

  DType wanted_type(const StoredTensor& tensor) const {
    if (options_.pure || !is_quantized(options_.recipe.type)) return options_.recipe.type;
    const auto lower = std::lower_bound(v_layers_.begin(), v_layers_.end(), layer_of(tensor.name));
    return chooser_.choose(tensor, lower - v_layers_.begin());
  }

  Status add_importance(const StoredTensor& tensor, PlannedTensor& out) {
    if (options_.importance == nullptr) return {};
    const auto found = options_.importance->tensors.find(tensor.name);
    if (found == options_.importance->tensors.end()) {
      // Of the embedding and the head none is measured, as a rule.
      without_importance_ += layer_of(tensor.name) >= 0 ? 1 : 0;
      return {};
    }
    CUTAWAY_TRY(check_importance(tensor, found->second));
    out.importance = &found->second;
    ++with_importance_;
    return {};
  }

  const QuantizationOptions& options_;
  Facts facts_;
  Chooser chooser_;
  std::vector<Pattern> patterns_;
  std::vector<int64_t> v_layers_;
  size_t with_importance_ = 0, without_importance_ = 0;
};

}  // namespace

Result<QuantizationPlan> plan_quantization(const ModelFile& file,
                                           const QuantizationOptions& options) {
  CUTAWAY_SPAN(span, "model::plan_quantization", "file", file.path, "recipe", options.recipe.name);
  CUTAWAY_ASSIGN(std::vector<Pattern> patterns, compile(options.overrides));
  Planner planner(file, options, std::move(patterns));
  QuantizationPlan plan;
  for (const StoredTensor& tensor : file.tensors) {
    CUTAWAY_ASSIGN(PlannedTensor planned, planner.plan(tensor));
    plan.tensors.push_back(planned);
  }
  CUTAWAY_TRY(planner.finish(plan));
  CUTAWAY_OUT(span, "tensors", plan.tensors.size(), "bytes", plan.bytes());
  return plan;
}

}  // namespace cutaway::model
