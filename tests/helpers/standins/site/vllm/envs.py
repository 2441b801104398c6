environment_variables = {}
