// The API's documentation: Swagger UI over the server's own description.
import SwaggerUI from 'swagger-ui-dist/swagger-ui-es-bundle.js';

SwaggerUI({
  url: 'openapi.json',
  dom_id: '#docs',
  deepLinking: true,
  filter: true,
  tryItOutEnabled: true,
  displayRequestDuration: true,
  // Requests and answers show their schemas themselves.
  defaultModelsExpandDepth: 0,
  defaultModelExpandDepth: 2,
  // Nothing is sent to other hosts.
  validatorUrl: null,
});

// Swagger UI has dark colours, and does not look at the system's.
const dark = matchMedia('(prefers-color-scheme: dark)');
const follow = () => document.documentElement.classList.toggle('dark-mode', dark.matches);
dark.addEventListener('change', follow);
follow();
