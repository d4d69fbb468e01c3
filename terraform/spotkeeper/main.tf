# Spotkeeper's stack in Terraform. Package the template first (docs/deploy.md):
#   sam package --s3-bucket BUCKET --output-template-file packaged.yaml

terraform {
  required_version = ">= 1.3"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "name" {
  description = "The stack's name: at most 51 characters."
  type        = string
  default     = "spotkeeper"
  validation {
    condition     = can(regex("^[a-zA-Z][a-zA-Z0-9-]{0,50}$", var.name))
    error_message = "A stack's name begins with a letter and has at most 51 letters, digits and hyphens."
  }
}

variable "template_url" {
  description = "Where the packaged template is: https://BUCKET.s3.REGION.amazonaws.com/packaged.yaml"
  type        = string
}

variable "parameters" {
  description = "The stack's parameters, such as SpotGroupName and OnDemandGroupName."
  type        = map(string)
  default     = {}
}

variable "tags" {
  description = "Tags of the stack and of what it makes."
  type        = map(string)
  default     = {}
}

resource "aws_cloudformation_stack" "this" {
  name         = var.name
  template_url = var.template_url
  parameters   = var.parameters
  tags         = var.tags
  capabilities = ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
}

output "outputs" {
  description = "The stack's outputs, such as SearchLogQueueUrl and OperatorRole."
  value       = aws_cloudformation_stack.this.outputs
}
